"""Embedding tables, whole on each worker or divided over all."""

import tensorflow as tf

import tf_sparse_strategy as tss
from examples.common.garden import IS_LEGACY


def table(rows: int, columns: int, sharded: bool, **kwargs) -> tf.keras.layers.Embedding:
    """A layer with a table of this size; with `sharded` its columns are divided over the workers."""
    if not sharded:
        return tf.keras.layers.Embedding(rows, columns, **kwargs)
    if IS_LEGACY:
        from tf_sparse_strategy.legacy_keras import ShardedEmbedding
    else:
        ShardedEmbedding = tss.layers.ShardedEmbedding
    return ShardedEmbedding(rows, columns, **kwargs)
