"""Sums and replacements at few places of long vectors: what becomes of the entries that top-k has chosen."""


import tensorflow as tf

from custom_ops.library import library, on_gpu

operations = library(__file__)


def sum_entries(values: tf.Tensor, indices: tf.Tensor, length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up the entries of S vectors, each in C rows of K, row by row.

        total[s length + indices[s, c, k]] += values[s, c, k],   c = 0, 1, ...

    Each vector's entries are added in their order: every bit is the same on all machines, as long as the
    indices of a row are distinct. Cost: one write of `total`, and where the indices of each row rise little
    more; else a few ns for each entry, by one thread per vector. No gradient.

    When not to use it: where a large part of a vector has entries, adding vectors is faster. With a GPU in
    sight it is TensorFlow's scatter, which is slow on CPUs only.

    Args:
      values: float32 [S, C, K]; C static.
      indices: int32 [S, C, K].
      length: elements of a vector.

    Returns:
      (float32 [S length], scalar bool: whether all sums are finite).

    Raises:
      tf.errors.InvalidArgumentError: an index leads out of its vector (on a CPU).
      ValueError: shapes differ.

    Example:
      >>> total, finite = sum_entries([[[1.0, 2.0], [3.0, 4.0]]], [[[0, 2], [2, 3]]], length=4)
      >>> total.numpy().tolist(), bool(finite)
      ([1.0, 0.0, 5.0, 4.0], True)

    Source: this library.
    """
    values, indices = tf.convert_to_tensor(values, tf.float32), tf.convert_to_tensor(indices, tf.int32)
    values.shape.with_rank(3).assert_is_compatible_with(indices.shape)
    if on_gpu():
        return _sum_by_tensorflow(values, indices, length)
    return tuple(operations().sum_entries(values=values, indices=indices, length=length))


def replace_entries(rows: tf.Tensor, indices: tf.Tensor, values: tf.Tensor | float) -> tf.Tensor:
    """`rows` with other values at some places.

    Cost: a few ns for each entry, and a copy of `rows` unless nothing else needs them. No gradient.

    Args:
      rows: float32 [R, n].
      indices: int32 [R, K], distinct in each row, or with one value.
      values: float32 [R, K], or one for all.

    Returns:
      float32 [R, n].

    Raises:
      tf.errors.InvalidArgumentError: an index is not in [0, n) (on a CPU).
      ValueError: shapes differ.

    Example:
      >>> replace_entries([[1.0, 2.0, 3.0]], [[2, 0]], 0.0).numpy().tolist()
      [[0.0, 2.0, 0.0]]

    Source: this library.
    """
    rows, indices = tf.convert_to_tensor(rows, tf.float32), tf.convert_to_tensor(indices, tf.int32)
    values = tf.convert_to_tensor(values, tf.float32)
    rows.shape.with_rank(2)[:1].assert_is_compatible_with(indices.shape.with_rank(2)[:1])
    if values.shape.rank != 0:
        values.shape.assert_is_compatible_with(indices.shape)
    if on_gpu():
        return _replace_by_tensorflow(rows, indices, values)
    return operations().replace_entries(rows=rows, indices=indices, values=values)


def _sum_by_tensorflow(values, indices, length):
    shards = tf.shape(values, tf.int64)[0]
    at = tf.cast(indices, tf.int64) + length * tf.range(shards)[:, tf.newaxis, tf.newaxis]
    total = tf.zeros(length * shards[tf.newaxis])
    # One row after the other: where indices are distinct, the order of threads does not matter. (Unstacked
    # integers would go through the host.)
    for row, what in enumerate(tf.unstack(values, axis=1)):
        total = tf.tensor_scatter_nd_add(total, tf.reshape(at[:, row], [-1, 1]), tf.reshape(what, [-1]))
    return tf.stop_gradient(total), tf.reduce_all(tf.math.is_finite(total))


def _replace_by_tensorflow(rows, indices, values):
    size = tf.shape(rows, tf.int64)
    at = tf.cast(indices, tf.int64) + size[1] * tf.range(size[0])[:, tf.newaxis]
    values = tf.reshape(tf.broadcast_to(values, tf.shape(indices)), [-1])
    flat = tf.tensor_scatter_nd_update(tf.reshape(rows, [-1]), tf.reshape(at, [-1, 1]), values)
    return tf.stop_gradient(tf.reshape(flat, size))


tf.no_gradient("SumEntries")
tf.no_gradient("ReplaceEntries")
