"""Divided tables and slots in TensorFlow's checkpoints: whole in the file, and in no worker's memory.

A checkpoint may hold a tensor in slices, which TensorFlow puts together for whoever reads it. The first
worker writes a table some rows at a time, which it asks the others for when it comes to them; each reads its
columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

_SLICE = 16 << 20  # bytes: whoever reads a part of one, reads it whole
_FILES = 4  # in which a worker's number of elements is written, one after the other, unless they are few
_SLICED = (tf.float32, tf.float64, tf.bfloat16)  # TensorFlow puts no float16 together
_VALUE = "VARIABLE_VALUE"  # TensorFlow's name for a plain variable's value


class _Part:
    """A tensor's place, type and shape, known before TensorFlow asks for its value in order to write it."""

    def __init__(self, shape: tuple[int, ...], held: Any, value: Callable[[], np.ndarray], file: int = 0):
        self.shape, self.dtype, self.device = tf.TensorShape(shape), held.dtype, held.values[0].device
        self.file = file  # size limit, bytes, of the file that this part shares with others
        self._value = value

    def __array__(self, dtype=None, copy=None):
        return self._value()


def whole(held: Any, value: Callable[[], np.ndarray]) -> dict:
    """What TensorFlow reads and writes of a slice in one piece, by name and by slice.

    Args:
      held: the slice.
      value: the whole that it is a part of, when it is written.
    """
    return {_VALUE: {"": _Part(held.partition.shape, held, value)}}


def to_write(held: Any, fetch: Callable[[int, int], np.ndarray]) -> dict:
    """What the first worker writes of the whole of a divided slice.

    Args:
      held: the slice.
      fetch: from (first, end) to the rows [first, end) of its partition's grid, when they are written.
    """
    partition = held.partition
    if not goes_by_slices(held):
        return whole(held, lambda: partition.whole(fetch(0, partition.grid.rows)))
    own = held.dtype.size * partition.rows * partition.columns // partition.workers

    def part(first, end):
        file = max(_SLICE, own // _FILES)
        return _Part((end - first, partition.columns), held, lambda: fetch(first, end), file)

    bounds = partition.chunks(_SLICE // held.dtype.size)
    return {_VALUE: {_slice(partition, rows, (0, partition.columns)): part(*rows) for rows in bounds}}


def nothing_to_write() -> dict:
    """What the other workers write of it."""
    return {_VALUE: {}}


def to_read(held: Any, rank: int) -> dict:
    """What worker `rank` reads for a divided slice: its columns, or the whole."""
    partition = held.partition
    if not goes_by_slices(held):
        return whole(held, _refuse)
    first, end = partition.bounds(rank)
    first = min(first, partition.columns - 1)  # one column if it has none: no slice is empty
    end = max(end, first + 1)
    part = _Part((partition.rows, end - first), held, _refuse)
    return {_VALUE: {_slice(partition, (0, partition.rows), (first, end)): part}}


def value_read(restored: dict) -> tf.Tensor:
    """What TensorFlow has read as `to_read` or `whole` says."""
    value = restored[_VALUE]
    if isinstance(value, dict):  # by slice, as some of TensorFlow's readers have it
        [value] = value.values()
    return value


def goes_by_slices(held: Any) -> bool:
    """Whether parts of `held` are read and written, and not the whole."""
    return held.partition.goes_by_rows and held.dtype in _SLICED


def _slice(partition, rows, columns) -> str:
    ranges = (f"{first},{end - first}" for first, end in (rows, columns))
    return f"{partition.rows} {partition.columns} " + ":".join(ranges)


def _refuse():
    raise NotImplementedError(
        "a sharded table is written by tf.train.Checkpoint, or by what Keras saves with, and by nothing else."
    )


class PartsInTurn(tf.train.experimental.ShardingCallback):
    """Puts parts into shards that are written one after the other, so that few are in memory at a time.

    Args:
      others: the callback for all other tensors; None is TensorFlow's own.
    """

    def __init__(self, others: tf.train.experimental.ShardingCallback | None):
        self._others = others or tf.train.experimental.ShardByTaskPolicy()

    @property
    def description(self) -> str:
        return "Sharded tables some rows at a time. " + self._others.description

    def __call__(self, tensors):
        others = [tensor for tensor in tensors if not isinstance(tensor.tensor, _Part)]
        shards, room = list(self._others(others)) if others else [], 0
        for part in (tensor for tensor in tensors if isinstance(tensor.tensor, _Part)):
            size = part.tensor.shape.num_elements() * part.dtype.size
            if size > room:
                shards.append({})
                room = part.tensor.file
            room -= size
            shards[-1].setdefault(part.checkpoint_key, {})[part.slice_spec] = part.tensor
        return shards
