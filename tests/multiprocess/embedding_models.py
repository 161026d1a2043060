"""Models with tables, sharded under a strategy and whole in one process, that tests of embeddings share."""

import numpy as np
import tensorflow as tf

ROWS, BATCH, VOCABULARY = 26, 8, 13


def dense_gradients(optimizer):
    """`optimizer`, given dense gradients: the sum of a repeated id's rows, as slices of tables get it.

    Keras 3 does not add them up itself, and its Adam, momentum and Adagrad then differ.
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
    """Batches of (tokens, targets); the last has fewer rows than there may be workers."""
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
