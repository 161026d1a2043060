"""Sums and replacements at few places of long vectors: what becomes of the entries that top-k has chosen."""

import functools
import pathlib
import types

import tensorflow as tf

_LIBRARY = pathlib.Path(__file__).with_name("entries_ops.so")


@functools.cache
def _ops() -> types.ModuleType:
    """The compiled operations; loaded at the first call, not at import."""
    if not _LIBRARY.exists():
        raise ImportError(
            f"custom_ops.entries: {_LIBRARY.name} is not in {_LIBRARY.parent}: run `make setup` in the "
            "checkout to build it, or install the wheel, which contains it."
        )
    return tf.load_op_library(str(_LIBRARY))


def _on_gpu() -> bool:
    """Whether tensors may be there: TensorFlow's own operations are then faster than a copy and back."""
    return bool(tf.config.get_visible_devices("GPU"))


def sum_entries(
    values: tf.Tensor, indices: tf.Tensor, length: int, stride: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up the entries of S vectors, each in C rows of K, row by row.

        total[s length + c stride + indices[s, c, k]] += values[s, c, k],   c = 0, 1, ...

    Each vector's entries are added in their order: every bit is the same on all machines, as long as the
    indices of a row are distinct. Cost: one write of `total`, and a few ns for each entry.

    Args:
      values: float32 [S, C, K].
      indices: int32 [S, C, K].
      length: elements of a vector.
      stride: row c's indices count from c stride.

    Returns:
      (float32 [S length], scalar bool: whether all sums are finite).

    Raises:
      tf.errors.InvalidArgumentError: an index leads out of its vector (on a CPU), or shapes differ.

    Example:
      >>> total, finite = sum_entries([[[1.0, 2.0], [3.0, 4.0]]], [[[0, 2], [2, 3]]], length=4)
      >>> total.numpy().tolist(), bool(finite)
      ([1.0, 0.0, 5.0, 4.0], True)
    """
    if _on_gpu():
        return _sum_by_tensorflow(tf.convert_to_tensor(values), indices, length, stride)
    return tuple(_ops().sum_entries(values=values, indices=indices, length=length, stride=stride))


def replace_entries(rows: tf.Tensor, indices: tf.Tensor, values: tf.Tensor | float) -> tf.Tensor:
    """`rows` with other values at some places; in place where nothing else needs them.

    Args:
      rows: float32 [R, n].
      indices: int32 [R, K], distinct in each row.
      values: float32 [R, K], or one for all.

    Returns:
      float32 [R, n].

    Raises:
      tf.errors.InvalidArgumentError: an index is not in [0, n) (on a CPU), or shapes differ.

    Example:
      >>> replace_entries([[1.0, 2.0, 3.0]], [[2, 0]], 0.0).numpy().tolist()
      [[0.0, 2.0, 0.0]]
    """
    if _on_gpu():
        return _replace_by_tensorflow(tf.convert_to_tensor(rows), indices, values)
    return _ops().replace_entries(rows=rows, indices=indices, values=values)


def _sum_by_tensorflow(values, indices, length, stride):
    shards, rows, count = values.shape
    first = length * tf.range(shards)[:, tf.newaxis, tf.newaxis]
    first += stride * tf.range(rows)[tf.newaxis, :, tf.newaxis]
    at = tf.reshape(tf.transpose(indices + first, [1, 0, 2]), [rows, shards * count, 1])
    what = tf.reshape(tf.transpose(values, [1, 0, 2]), [rows, shards * count])
    total = tf.zeros([shards * length])
    for row in range(rows):  # one after the other: where indices are distinct, threads do not matter
        total = tf.tensor_scatter_nd_add(total, at[row], what[row])
    return total, tf.reduce_all(tf.math.is_finite(total))


def _replace_by_tensorflow(rows, indices, values):
    indices = tf.convert_to_tensor(indices)
    shape = tf.shape(indices)
    row = tf.repeat(tf.range(shape[0]), shape[1])
    where = tf.stack([row, tf.reshape(indices, [-1])], axis=1)
    values = tf.reshape(tf.broadcast_to(values, shape), [-1])
    return tf.tensor_scatter_nd_update(rows, where, values)
