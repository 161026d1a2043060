"""Embedding tables, whole on each worker or divided over all."""

import keras

import tf_sparse_strategy as tss


def table(rows: int, columns: int, sharded: bool, **kwargs) -> keras.layers.Embedding:
    """A layer with a table of this size; with `sharded` its columns are divided over the workers."""
    kind = tss.layers.ShardedEmbedding if sharded else keras.layers.Embedding
    return kind(rows, columns, **kwargs)
