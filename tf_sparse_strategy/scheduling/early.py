"""Rows of the next batch, looked up a step early: those that this step does not move.

With B_t the ids of all workers in step t, of which step t moves no others, worker r, or a node that looks up
as one (embedding/party.py), may read

    early rows    its own ids of B_{t+1} \\ B_t

in step t already, once the delayed rows of step t-1 are applied, which may be among them. Step t+1 then waits
for the rows of B_{t+1} ∩ B_t alone. What is read, and so every result, stays the same.

Which rows a worker has is its own affair: it asks the others for those that it lacks. So it may drop them
whenever something else writes to the table.

Source: "prioritized embedding communication" of TorchRec (FreeScale, 2026), there for tables divided by rows;
prior and delayed rows are EmbRace's (Li et al., ICPP 2022), algorithm 1.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.call_site import plain_variable


def positions(known: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Where each of `ids` [n] is in `known` [m], -1 where it is not; both without repetitions.

    Example:
      >>> positions(tf.constant([5, 2]), tf.constant([2, 3])).numpy().tolist()
      [1, -1]
    """
    _, place = tf.unique(tf.concat([known, ids], axis=0))
    # Not the size of `known`: of what was read from a variable TensorFlow's optimizer asks the variable, and
    # that later, when it has another value.
    number = tf.size(place) - tf.size(ids)
    place = place[number:]
    return tf.where(place < number, place, -1)


def missing_first(
    ids: tf.Tensor, place: tf.Tensor, position: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Orders distinct ids so that those without a position come first.

    Args:
      ids: distinct, [u].
      place: of each given id among them, [n].
      position: -1 for those that are missing, [u].

    Returns:
      (ids, place, how many are missing, positions of the others), in the new order.

    Example:
      >>> ids, place, position = (tf.constant(x) for x in ([7, 8, 9], [0, 1, 1, 2], [4, -1, 3]))
      >>> [x.numpy().tolist() for x in missing_first(ids, place, position)]
      [[8, 7, 9], [1, 0, 0, 2], 1, [4, 3]]
    """
    is_missing = position < 0
    missing, found = (tf.reshape(tf.where(x), [-1]) for x in (is_missing, ~is_missing))
    order = tf.cast(tf.concat([missing, found], axis=0), place.dtype)
    moved = tf.gather(tf.math.invert_permutation(order), place)
    number = tf.size(missing)
    return tf.gather(ids, order), moved, number, tf.gather(position, found)


def no_rows(table: Any, dtype: tf.DType) -> tuple[tf.Variable, tf.Variable]:
    """Variables for (ids int64 [n], rows [n, this worker's columns] of dtype) of a slice, n = 0 so far."""
    columns, device = sum(table.slices.widths(table.partition)), table.values[0].device
    ids = plain_variable(np.zeros([0], np.int64), device, shape=[None])
    return ids, plain_variable(np.zeros([0, columns], dtype.as_numpy_dtype), device, shape=[None, columns])


class EarlyRows:
    """Rows of one table that this worker has for its next lookup.

    Args:
      table: the slice that they are of.
    """

    def __init__(self, table: Any):
        # Wide enough for whatever dtype rows travel in, so that they keep their bits.
        self._ids, self._rows = no_rows(table, table.dtype if table.dtype.size >= 4 else tf.float32)

    def positions(self, ids: tf.Tensor) -> tf.Tensor:
        """Where each of the distinct `ids` is, -1 where it is not."""
        return positions(self._ids.read_value(), ids)

    def at(self, position: tf.Tensor) -> tf.Tensor:
        """The rows at positions that are not -1."""
        return tf.gather(self._rows.read_value(), position)

    def store(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Keeps them instead of what there was."""
        self._ids.assign(ids)
        self._rows.assign(tf.cast(rows, self._rows.dtype))

    def drop(self) -> None:
        """From now on there are none."""
        self.store(tf.zeros([0], tf.int64), tf.zeros([0, self._rows.shape[1]], self._rows.dtype))
