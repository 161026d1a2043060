"""What optimizers do besides a step, against one process on the global batch: see oracle.py.

Keras clips each worker's gradient; here the sum is clipped, as one process would.
"""

import functools

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle

ROWS, BATCH = 25, 8


def experiment(optimizer, data=None, build=oracle.mlp, epochs=2, fit_args=None, **compile_args):
    """fit on `data` with the optimizer that `optimizer()` makes."""

    def run(scope):
        with scope():
            model = build()
            model.compile(**{"optimizer": optimizer(), "loss": "mse", **compile_args})
        history = model.fit(
            oracle.dataset(ROWS, BATCH) if data is None else data,
            epochs=epochs,
            verbose=0,
            shuffle=False,
            **(fit_args or {}),
        )
        return oracle.outcome(model, history)

    return run


@pytest.mark.parametrize(
    "settings",
    [
        {"clipnorm": 0.05},
        {"global_clipnorm": 0.05, "weight_decay": 0.01},
        {"clipvalue": 0.01, "use_ema": True, "ema_overwrite_frequency": 3},
    ],
    ids=str,
)
def test_clipping_ema_weight_decay(comm, keras, strategy, settings):
    oracle.compare(
        comm,
        strategy,
        experiment(lambda: keras.optimizers.SGD(0.5, **settings), build=lambda: oracle.mlp(keras)),
    )


def test_a_step_sends_gradients_and_nothing_else(keras, strategy):
    """No counter of the optimizer's is asked for: each would cost every step a wait for all workers."""
    with strategy.scope():
        model = oracle.mlp(keras)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        def on_worker():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(on_worker)

    x = tf.ones([2, oracle.FEATURES])
    kinds = [op.type for op in step.get_concrete_function(x).graph.get_operations()]
    sent = [kind for kind in kinds if kind.startswith("Horovod")]
    assert sent == ["HorovodAllreduce"] * (strategy.num_replicas_in_sync > 1)
    for _ in range(3):
        step(x)
    assert optimizer.iterations.numpy() == 3


def _apply_rows(optimizer, table, ids):
    rows = tf.IndexedSlices(tf.ones([40, 8]), ids, tf.constant([50, 8]))
    optimizer.apply([rows], [table])


class OfAUser(keras3.optimizers.SGD):
    """Which may do with rows what it likes."""


ADD_UP = {
    "SGD": (keras3.optimizers.SGD(0.1, momentum=0.9), True),
    "LazyAdam": (tss.optimizers.LazyAdam(0.1), True),
    "Adagrad": (tss.optimizers.Adagrad(0.1), True),
    "Adam": (keras3.optimizers.Adam(0.1), False),
    "SGD that clips": (keras3.optimizers.SGD(0.1, clipnorm=1e9), False),
    "SGD of a user": (OfAUser(0.1), False),
}


def test_optimizers_that_add_rows_up_are_sent_each_once(strategy, partners):
    """Or to which it is the same; others get them as they are."""
    sent = {}
    for name, (like, _) in ADD_UP.items():
        with strategy.scope():
            table = keras3.Variable(np.zeros([50, 8], "float32"))
            optimizer = type(like).from_config(like.get_config())
            optimizer.build([table])
        step = tf.function(functools.partial(_apply_rows, optimizer, table))
        ids = (tf.fill([40], 3),)
        strategy.run(step, ids)  # in which workers also compare what they train
        before = strategy.extended.collectives.traffic()[1].total
        strategy.run(step, ids)
        sent[name] = strategy.extended.collectives.traffic()[1].total - before
        assert table.numpy()[3].all() and not table.numpy()[4].any()
    assert {name: 30 * total < sent["Adam"] for name, total in sent.items()} == {
        name: are_added for name, (_, are_added) in ADD_UP.items()
    }


def test_nor_does_a_step_of_fit(keras, strategy, topology):
    """tf_keras counts steps in variables of its own; it asks for the loss's total and count in each."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    rows, calls = 4 * topology.num_workers, []
    for steps in (2, 2, 6):
        x = np.ones([steps * rows, 2], "float32")
        before, _ = strategy.extended.collectives.traffic()
        model.fit(x, x[:, :1], batch_size=rows, verbose=0)
        after, _ = strategy.extended.collectives.traffic()
        calls.append(after - before)
    in_a_step = 1 if "tf_keras" not in keras.__name__ else 3
    assert calls[2] - calls[1] == (4 * in_a_step if topology.num_workers > 1 else 0)


@pytest.mark.parametrize("steps", [2, 3])
def test_gradient_accumulation(comm, strategy, steps):
    """Also where the batch before an update has rows for one worker alone, the second of 2."""
    import keras

    def optimizer():
        return keras.optimizers.Adam(0.02, gradient_accumulation_steps=steps)

    oracle.compare(comm, strategy, experiment(optimizer, build=lambda: oracle.mlp(keras)))


def embedding_model(keras):
    inputs = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(7, 4)(inputs))
    return oracle.start(keras.Model(inputs, keras.layers.Dense(1)(hidden)))


NESTEROV = {"momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize("kind", [("SGD", {}), ("SGD", NESTEROV), ("Adam", {})], ids=str)
def test_embedding(comm, keras, strategy, kind):
    """Sparse gradients are gathered, so an optimizer sees the slices that one process sees.

    That includes Adam of Keras 3, which does not add duplicate indices up; to its SGD it is the same.
    """
    name, options = kind
    tokens = np.random.default_rng(0).integers(0, 7, (ROWS, 3)).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((tokens, oracle.regression(ROWS)[1])).batch(BATCH)

    def optimizer():
        return getattr(keras.optimizers, name)(0.05, **options)

    oracle.compare(
        comm, strategy, experiment(optimizer, data, build=lambda: embedding_model(keras))
    )


def two_outputs(keras):
    inputs = keras.Input((oracle.FEATURES,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    value = keras.layers.Dense(1, name="value")(hidden)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(hidden)
    return oracle.start(keras.Model(inputs, {"value": value, "kind": kind}))


def test_outputs_weights_and_arrays(comm, keras, strategy):
    """Two outputs with their losses, a weight per row, arrays instead of a dataset."""
    x, y = oracle.regression(ROWS)
    kind = np.arange(ROWS) % 3
    weights = {name: np.linspace(0.1, 2, ROWS).astype("float32") for name in ("value", "kind")}

    def run(scope):
        with scope():
            model = two_outputs(keras)
            model.compile(
                optimizer=keras.optimizers.SGD(0.1),
                loss={"value": "mse", "kind": "sparse_categorical_crossentropy"},
                loss_weights={"value": 1.0, "kind": 0.3},
                metrics={"value": "mae", "kind": "accuracy"},
            )
        history = model.fit(
            x,
            {"value": y, "kind": kind},
            batch_size=BATCH,
            sample_weight=weights,
            epochs=2,
            shuffle=False,
            verbose=0,
        )
        predicted = model.predict(x, batch_size=BATCH, verbose=0)
        return oracle.outcome(model, history, **predicted)

    oracle.compare(comm, strategy, run)


def test_class_weight(comm, keras, strategy):
    x, _ = oracle.regression(ROWS)
    kind = np.arange(ROWS) % 3
    data = tf.data.Dataset.from_tensor_slices((x, kind)).batch(BATCH)

    def build():
        inputs = keras.Input((oracle.FEATURES,))
        outputs = keras.layers.Dense(3, activation="softmax")(inputs)
        return oracle.start(keras.Model(inputs, outputs))

    oracle.compare(
        comm,
        strategy,
        experiment(
            lambda: keras.optimizers.SGD(0.1),
            data,
            build,
            fit_args={"class_weight": {0: 1.0, 1: 2.0, 2: 0.2}},
            loss="sparse_categorical_crossentropy",
        ),
    )


def test_loss_scaling_skips_the_step_on_all_workers(comm, keras, strategy):
    """One row of one worker is infinite: nobody takes that step, all halve the loss scale."""
    x, y = oracle.regression(ROWS)
    x[BATCH + 1] = np.inf  # rank 0's, in the second step
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    def run(scope):
        policy = keras.mixed_precision.Policy("mixed_float16")
        keras.mixed_precision.set_global_policy(policy)
        try:
            with scope():
                model = oracle.mlp(keras)
                model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        finally:
            keras.mixed_precision.set_global_policy("float32")
        model.fit(data, epochs=1, verbose=0)
        scale = getattr(model.optimizer, "dynamic_scale", None)
        scale = model.optimizer.loss_scale if scale is None else scale
        steps = model.optimizer.iterations
        weights = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
        return {**weights, "scale": scale.numpy(), "steps": steps.numpy()}

    # float16 activations: 2^-11 of relative error in each gradient.
    ours = oracle.compare(comm, strategy, run, rtol=5e-3, atol=1e-3)
    assert all(np.isfinite(value).all() for value in ours.values())
    for value in ours.values():
        oracle.assert_identical(comm, value)


def test_terminate_on_nan_stops_all_workers(comm, keras, strategy):
    """The worker that sees the NaN first must not leave the others waiting for it."""
    x, y = oracle.regression(ROWS)
    y[BATCH] = np.nan  # rank 0's, in the second step
    with strategy.scope():
        model = oracle.mlp(keras)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    model.fit(data, epochs=3, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert int(model.optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("eager", [False, True])
def test_two_optimizers_that_the_first_step_builds(comm, strategy, eager):
    """As of a GAN: each trains its part of the model, and its slots are made while the step is traced."""
    import keras

    class Adversaries(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [oracle.mlp(keras), oracle.mlp(keras, keras.layers.Dense(4))]
            self.loss_function = keras.losses.MeanSquaredError()

        def call(self, x):
            return self.parts[0](x) + self.parts[1](x)

        def compile(self, optimizers, **options):
            super().compile(**options)
            self.first, self.second = optimizers

        def train_step(self, data):
            x, y = data
            for part, optimizer in zip(self.parts, (self.first, self.second), strict=True):
                with tf.GradientTape() as tape:
                    loss = self.loss_function(y, part(x, training=True))
                optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
            return {"steps": tf.constant(1.0)}

    def run(scope):
        with scope():
            model = Adversaries()
            optimizers = keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.1, momentum=0.9)
            model.compile(optimizers, run_eagerly=eager)
        history = model.fit(oracle.dataset(ROWS, BATCH), epochs=2, verbose=0, shuffle=False)
        assert all(optimizer.iterations.numpy() == 2 * -(-ROWS // BATCH) for optimizer in optimizers)
        return oracle.outcome(model, history)

    for weights in oracle.compare(comm, strategy, run).values():
        oracle.assert_identical(comm, weights)


@pytest.mark.parametrize("within", [True, False])
def test_a_step_outside_run_is_told(strategy, partners, keras, within):
    with strategy.scope():
        weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(1.0)
        optimizer.build([weight])
    gradients = [(tf.ones([1]), weight)]
    if within:
        refused = pytest.raises(RuntimeError, match="not in a step of the workers: put the step into")
        with strategy.scope(), refused:
            optimizer.apply_gradients(gradients)
        return
    own = {} if keras.__name__ == "keras" else {"skip_gradients_aggregation": True}
    with pytest.warns(UserWarning, match="applied outside strategy.run"):  # they may be sums already
        optimizer.apply_gradients(gradients, **own)
    assert weight.numpy().tolist() == [0.0]
