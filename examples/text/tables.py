"""Embedding tables, whole on each worker or divided over all."""

import tensorflow as tf

from examples.common.keras_classes import ShardedEmbedding


def table(rows: int, columns: int, sharded: bool, **kwargs) -> tf.keras.layers.Embedding:
    """A layer with a table of this size; with `sharded` its columns are divided over the workers."""
    if not sharded:
        return tf.keras.layers.Embedding(rows, columns, **kwargs)
    return ShardedEmbedding(rows, columns, **kwargs)
