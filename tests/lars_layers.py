"""Layers for comparing an optimizer with and without divided norms: shapes, weights, gradients."""

import numpy as np
import tensorflow as tf

UNIT = 1 << 16  # a layer is cut at multiples of this many elements

# Name -> shapes of the variables.
MODELS = {
    "many": [(3, 4), (7,), (2, 2, 2), (40, 5), (1, 1), (5, 5), (64,), (9, 1)],
    "fewer than workers": [(3, 4), (7,)],
    "one huge": [(3, 1), (3, UNIT + 11), (2,)],
    "nothing to measure": [(7,), ()],
}
STEPS = 4


def weights(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape).astype(np.float32) for shape in MODELS[name]]


def gradients(name: str, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(100 + step)
    return [rng.normal(size=shape).astype(np.float32) for shape in MODELS[name]]


def as_rows(gradient: tf.Tensor) -> tf.IndexedSlices:
    """The same gradient as rows, the first of them in two halves; its shape is known to the run alone."""
    count = gradient.shape[0]
    order = tf.constant([0, *range(count)])
    parts = tf.constant([0.5, 0.5] + [1.0] * (count - 1))[:, None]
    shape = tf.raw_ops.PlaceholderWithDefault(input=gradient.shape, shape=[2])
    return tf.IndexedSlices(tf.gather(gradient, order) * parts, order, shape)


def train(framework: str, optimizer, name: str, strategy=None, sparse: int | None = None, frozen=()):
    """Weights and slots after `STEPS` steps; replica 0 brings the gradients, the others zeros.

    Args:
      framework: "keras3" or "tf_keras".
      optimizer: makes the optimizer.
      name: a key of `MODELS`.
      strategy: where to train; None for no strategy.
      sparse: the layer whose gradient is an `IndexedSlices`, if any.
      frozen: layers that the optimizer was built with and gets no gradients of.

    Returns:
      (weights and slots as arrays, the optimizer).
    """
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        if framework == "keras3":
            import keras

            variables = [keras.Variable(w, name=f"layer{i}") for i, w in enumerate(weights(name))]
        else:
            variables = [tf.Variable(w, name=f"layer{i}") for i, w in enumerate(weights(name))]
        optimizer = optimizer()
        optimizer.build(variables)

    def step(*given):
        context = tf.distribute.get_replica_context()
        first = tf.cast(context.replica_id_in_sync_group == 0, tf.float32)
        given = [g * first for g in given]
        if sparse is not None:
            given[sparse] = as_rows(given[sparse])
        pairs = zip(given, variables, strict=True)
        optimizer.apply_gradients([pair for i, pair in enumerate(pairs) if i not in frozen])

    run = tf.function(lambda *given: strategy.run(step, args=given))
    for number in range(STEPS):
        run(*(tf.constant(g) for g in gradients(name, number)))
    state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.array(v.numpy()) for v in [*variables, *state]], optimizer
