"""Ids as tensors, ragged or sparse tensors: flattened for the lookup, and rows brought back into shape."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding.combiner import combine

Restore = Callable[[tf.Tensor], Any]


def flatten(ids: Any, weights: Any, combiner: str | None) -> tuple[tf.Tensor, Restore]:
    """(ids [n], the function from their rows [n, D] to the layer's output).

    Args:
      ids: a tensor [..., K], a ragged tensor, [B, (K)] to be combined, or a `tf.SparseTensor` [B, K].
      weights: of the same kind and places as `ids`, or None.
      combiner: how the K rows become one; None to keep them.

    Raises:
      ValueError: a sparse tensor or weights without a combiner, or more dimensions than can be combined.
    """
    if weights is not None and combiner is None:
        raise ValueError("weights were given, but combiner=None combines nothing; pass combiner='sum'.")
    if isinstance(ids, tf.SparseTensor):
        return _from_sparse(ids, weights, combiner)
    if isinstance(ids, tf.RaggedTensor):
        return _from_ragged(ids, weights, combiner)
    shape = tf.shape(ids)
    if combiner is None:
        return tf.reshape(ids, [-1]), lambda rows: _shaped(rows, ids.shape, shape)
    if ids.shape.rank == 0:
        raise ValueError("a single id cannot be combined; pass ids of shape [..., K].")
    outer = shape[:-1]
    count = tf.reduce_prod(outer)
    segments = tf.repeat(tf.range(count), tf.fill([count], shape[-1]))
    flat = None if weights is None else tf.reshape(tf.broadcast_to(weights, shape), [-1])

    def restore(rows):
        return _shaped(combine(rows, segments, count, combiner, flat), ids.shape[:-1], outer)

    return tf.reshape(ids, [-1]), restore


def _shaped(rows, static, dynamic):
    result = tf.reshape(rows, tf.concat([dynamic, tf.shape(rows)[1:]], axis=0))
    result.set_shape(static.concatenate(rows.shape[1:]))
    return result


def _from_ragged(ids, weights, combiner):
    if combiner is None:
        values = ids.flat_values
        inner = tf.shape(values)
        return tf.reshape(values, [-1]), lambda rows: ids.with_flat_values(_shaped(rows, values.shape, inner))
    if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
        raise ValueError(f"ragged ids of shape {ids.shape} cannot be combined; pass shape [B, (K)].")
    segments, count = tf.cast(ids.value_rowids(), tf.int32), tf.cast(ids.nrows(), tf.int32)
    flat = weights
    if isinstance(weights, tf.RaggedTensor):
        with _in_same_places(weights.row_splits, ids.row_splits):
            flat = tf.identity(weights.flat_values)
    return ids.values, lambda rows: combine(rows, segments, count, combiner, flat)


def _from_sparse(ids, weights, combiner):
    if combiner is None:
        raise ValueError("ids are a tf.SparseTensor; pass combiner='sum', 'mean' or 'sqrtn'.")
    if ids.shape.rank != 2:
        raise ValueError(f"sparse ids of shape {ids.shape} cannot be combined; pass shape [B, K].")
    segments, count = tf.cast(ids.indices[:, 0], tf.int32), tf.cast(ids.dense_shape[0], tf.int32)
    flat = weights
    if isinstance(weights, tf.SparseTensor):
        with _in_same_places(weights.indices, ids.indices):
            flat = tf.identity(weights.values)
    return ids.values, lambda rows: combine(rows, segments, count, combiner, flat)


def _in_same_places(weights, ids):
    """After an assertion that weights are where ids are, not only as many."""
    weights, ids = tf.cast(weights, tf.int64), tf.cast(ids, tf.int64)
    alike = tf.reduce_all(tf.raw_ops.Equal(x=weights, y=ids, incompatible_shape_error=False))
    message = "weights are not in the places of the ids: give one for each id, in its row."
    return tf.control_dependencies([tf.debugging.Assert(alike, [message])])
