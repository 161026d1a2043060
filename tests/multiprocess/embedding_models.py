"""Models with tables, sharded under a strategy and whole in one process, that tests of embeddings share."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy.embedding import slices

ROWS, BATCH, VOCABULARY = 73, 8, 13
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.01),
    "lazy_adam": lambda: tss.optimizers.LazyAdam(0.02),
    "lazy_adam_clipped": lambda: tss.optimizers.LazyAdam(0.02, global_clipnorm=0.05),
    "row_adagrad": lambda: tss.optimizers.Adagrad(0.1),
}
LAZY = ("lazy_adam", "lazy_adam_clipped")  # dense gradients would move all rows


def dense_gradients(optimizer):
    """`optimizer`, given dense gradients: the sum of a repeated id's rows, as slices of tables get it.

    Keras 3 does not add them up itself, and its Adam and Adagrad then differ.
    """

    class DenseGradients(type(optimizer)):
        def apply(self, grads, trainable_variables=None):
            dense = [None if g is None else tf.convert_to_tensor(g) for g in grads]
            return super().apply(dense, trainable_variables)

    optimizer.__class__ = DenseGradients
    return optimizer


def tokens(rows=ROWS, length=3, seed=0, vocabulary=VOCABULARY):
    """int32 [rows, length], skewed, so that ids repeat within a batch and between workers; some 0."""
    rng = np.random.default_rng(seed)
    return (rng.zipf(1.3, (rows, length)) % vocabulary).astype("int32")


def dataset(rows=ROWS, batch=BATCH, length=3):
    """Batches of (tokens, targets); the last has one row, for one worker, where there are 8 n + 1."""
    targets = np.random.default_rng(1).normal(size=(rows, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((tokens(rows, length), targets)).batch(batch)


def start(model, seed=1):
    """Gives `model`, sharded or not, weights that depend on the seed alone."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        weights = layer.get_weights()
        layer.set_weights([rng.normal(scale=0.5, size=w.shape).astype("float32") for w in weights])
    return model


def tables_of(model):
    """The whole tables, in order of layers."""
    return {
        f"table {i}": layer.get_weights()[0]
        for i, layer in enumerate(model.layers)
        if hasattr(layer, "input_dim")
    }


def one_table(table, width=5):
    inputs = keras.Input((3,), dtype="int32")
    rows = keras.layers.Flatten()(table(VOCABULARY, width)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(rows))


def compiled(table, seed=1, optimizer=lambda: keras.optimizers.Adam(0.05)):
    """Two tables, one narrower than there may be workers, and a dense layer."""
    inputs = keras.Input((3,), dtype="int32")
    rows = keras.layers.Concatenate()([table(VOCABULARY, 5)(inputs), table(VOCABULARY, 1)(inputs)])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(optimizer=optimizer(), loss="mse")
    return start(model, seed)


def whole(variables):
    """Their values, whatever of them is divided whole; collective."""
    return [slices.whole(v) for v in variables]


def whole_state(model):
    """Weights and the optimizer's variables, whole; collective."""
    return whole([*model.weights, *model.optimizer.variables])


def experiment(optimizer, build=one_table, data=None, predict=True, **table_args):
    """Two epochs of `data`, or of 10 steps; the oracle's scope, nullcontext, gets keras.layers.Embedding."""

    def run(scope):
        alone = scope is contextlib.nullcontext
        with scope():
            kind = keras.layers.Embedding if alone else tss.layers.ShardedEmbedding
            made = OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer()
            if alone and optimizer not in LAZY:
                made = dense_gradients(made)
            model = start(build(lambda *args, **kwargs: kind(*args, **kwargs, **table_args)))
            model.compile(optimizer=made, loss="mse", metrics=["mae"])
        history = model.fit(data or dataset(), epochs=2, verbose=0)
        more = {"predicted": model.predict(dataset(11, 6), verbose=0)} if predict else {}
        dense = {f"dense {i}": w for i, w in enumerate(model.layers[-1].get_weights())}
        logs = {f"log {k}": v for k, v in sorted(history.history.items())}
        # What is accumulated is summed over the workers later, when it is applied.
        slots = [v for v in model.optimizer.variables if "gradient_accumulator" not in v.path]
        slots = {f"slot {i}": slot for i, slot in enumerate(whole(slots))}
        return {**tables_of(model), **dense, **slots, **logs, **more}

    return run


def assert_serves(path, inputs, expected):
    """What an exported model computes, which one process loads, is `expected`; returns it."""
    loaded = tf.saved_model.load(path)  # held, or its variables are gone
    served = loaded.serve(inputs)
    np.testing.assert_allclose(served, expected, rtol=1e-6, atol=1e-6)
    return served
