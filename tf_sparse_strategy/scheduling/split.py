"""Which rows of a table go when: prior and delayed rows of a gradient, and early rows of the next lookup."""

from collections.abc import Sequence

import tensorflow as tf


def contains(ids: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """For each of `wanted` [n] whether it is among `ids` [m]; both integers below the dtype's largest.

    Example:
      >>> contains(tf.constant([5, 2, 5]), tf.constant([2, 3])).numpy().tolist()
      [True, False]
    """
    ordered = tf.sort(tf.concat([ids, tf.constant([ids.dtype.max], ids.dtype)], axis=0))
    # Not `tf.searchsorted`, which cannot look for nothing.
    place = tf.raw_ops.LowerBound(sorted_inputs=ordered[tf.newaxis], values=wanted[tf.newaxis])
    return tf.equal(tf.gather(ordered, tf.reshape(place, [-1])), wanted)


class Split:
    """One lookup's gradient in two parts, and the next lookup. With D_t the ids of all workers in step t,

        prior rows    D_t ∩ D_{t+1}, needed by the next lookup
        delayed rows  D_t \\ D_{t+1}
        early rows    D_{t+1} \\ D_t, which step t does not move

    so that a row is one of them for all workers.

    Args:
      ids: D_t, distinct per worker, or per node that looks up as one (embedding/party.py), by worker, [n].
      counts: how many of them each worker has.
      rank: this worker, or its node, among them.
      following: D_{t+1}, likewise.
      following_counts: how many of them each worker has.
      rows: of the table. Following ids out of range are none of the three: the next lookup refuses them.

    Attributes:
      counts: of each worker's prior rows.
      delayed_ids: of all workers, by worker.
      delayed_rows: this worker's, once `prior` was called.
      early_counts: of each worker's early rows.
      early_ids: of all workers, by worker.
      own_early_ids: this worker's.

    Source: EmbRace (Li et al., ICPP 2022), algorithm 1; of early rows early.py.
    """

    def __init__(
        self,
        ids: tf.Tensor,
        counts: Sequence,
        rank: int,
        following: tf.Tensor,
        following_counts: Sequence,
        rows: int,
    ):
        self._following = following
        self._is_prior = contains(following, ids)
        by_worker = tf.split(self._is_prior, tf.stack(counts), num=len(counts))
        self._mine = by_worker[rank]
        self.counts = [tf.math.count_nonzero(part, dtype=tf.int32) for part in by_worker]
        self.delayed_ids = tf.boolean_mask(ids, ~self._is_prior)
        self.delayed_rows = None
        is_early = (following >= 0) & (following < rows) & ~contains(ids, following)
        by_worker = tf.split(is_early, tf.stack(following_counts), num=len(counts))
        self.early_counts = [tf.math.count_nonzero(part, dtype=tf.int32) for part in by_worker]
        self.early_ids = tf.boolean_mask(following, is_early)
        self.own_early_ids = tf.split(self.early_ids, tf.stack(self.early_counts), num=len(counts))[rank]

    def prior(self, rows: tf.Tensor) -> tf.Tensor:
        """This worker's prior rows of `rows`, [own ids, columns]; keeps the others."""
        self.delayed_rows = tf.boolean_mask(rows, ~self._mine)
        return tf.boolean_mask(rows, self._mine)

    def spread(self, rows: tf.Tensor) -> tf.Tensor:
        """All workers' prior rows at their places among all ids; zeros in those of delayed ones."""
        is_prior = tf.cast(self._is_prior, tf.int32)
        zero_first = tf.pad(rows, [[1, 0], [0, 0]])
        return tf.gather(zero_first, tf.cumsum(is_prior) * is_prior)

    def check_alone(self, gradient: tf.IndexedSlices, name: str) -> tf.Operation | None:
        """An assertion that `gradient`, not summed yet, is that of this lookup in table `name` alone."""
        return tf.debugging.assert_equal(
            tf.size(gradient.indices), tf.size(self._is_prior),
            f"delay_rows: a step looks {name!r} up a second time, in a tf.function of its own. Leave out "
            "delay_rows.",
        )  # fmt: skip

    def without_delayed(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """`gradient` without the zeros of delayed rows, which would move slots."""
        kept = contains(self._following, tf.cast(gradient.indices, self._following.dtype))
        values, indices = (tf.boolean_mask(x, kept) for x in (gradient.values, gradient.indices))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)
