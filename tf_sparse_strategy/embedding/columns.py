"""Exchanges among workers of which each holds some columns of every table. Indices: q worker, t table."""

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.topology import Group


class Columns:
    """The workers of one group; r is this one. Every method is collective over the group.

    Args:
      collectives: of this worker.
      group: who takes part.
      widths: [t][q], how many columns of table t worker q of the group holds.
    """

    def __init__(self, collectives: Collectives, group: Group, widths: Sequence[Sequence[int]]):
        self._collectives, self._group, self._widths = collectives, group, widths
        self.workers = range(collectives.topology.size(group))
        self.index = collectives.topology.index(group)

    def ids_of_all(
        self, ids: Sequence[tf.Tensor], purpose: str
    ) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
        """(ids of all workers, by worker, for each list; how many of list t come from worker q: [q][t])."""
        limits = tf.int32.min, tf.int32.max
        narrow = [tf.cast(tf.clip_by_value(own, *limits), tf.int32) for own in ids]
        message = tf.concat([tf.stack([tf.size(own) for own in ids]), *narrow], axis=0)
        # An all-gather that tells how much came from whom: an all-to-all of copies.
        copies = tf.tile(message, [len(self.workers)])
        splits = tf.fill([len(self.workers)], tf.size(message))
        received, sizes = self._collectives.all_to_all(
            copies, splits, group=self._group, purpose=purpose
        )
        starts = tf.cumsum(sizes, exclusive=True)
        counts = tf.gather(received, starts[:, tf.newaxis] + tf.range(len(ids))[tf.newaxis])
        header = tf.fill([len(self.workers), 1], len(ids))
        lengths = tf.reshape(tf.concat([header, counts], axis=1), [-1])
        runs = tf.split(received, lengths, num=len(self.workers) * (len(ids) + 1))
        by_table = []
        for t, own in enumerate(ids):
            parts = [tf.cast(run, tf.int64) for run in runs[1 + t :: len(ids) + 1]]
            parts[self.index] = own  # not narrowed, so that an error here names what was given
            by_table.append(tf.concat(parts, axis=0))
        counts = [tf.unstack(row, num=len(ids)) for row in tf.unstack(counts, num=len(self.workers))]
        return by_table, counts

    def fetch(
        self, tables: Sequence[int], rows: Sequence[tf.Tensor], counts: Sequence, purpose: str
    ) -> list[list[tf.Tensor]]:
        """Own columns of rows for all workers -> the group's columns of this worker's rows.

        Args:
          tables: numbers t.
          rows: of each, by worker, [sum of counts[q][i] over q, own columns].
          counts: [q][i], for worker q of the i-th of the tables.
          purpose: of the exchange.

        Returns:
          [i][q], the columns [counts[r][i], …] that worker q holds.
        """
        r, widths = self.index, [self._widths[t] for t in tables]
        numbers = range(len(widths))
        outgoing = [[row[i] * widths[i][r] for i in numbers] for row in counts]
        flats = [tf.reshape(own, [-1]) for own in rows]
        received = self._swap(_by_worker(flats, outgoing), outgoing, purpose)
        incoming = [[counts[r][i] * widths[i][q] for i in numbers] for q in self.workers]
        parts = _cut(received, incoming)
        return [
            [tf.reshape(parts[q][i], [counts[r][i], widths[i][q]]) for q in self.workers] for i in numbers
        ]

    def send(
        self, tables: Sequence[int], rows: Sequence[Sequence[tf.Tensor]], counts: Sequence, purpose: str
    ) -> list[tf.Tensor]:
        """The reverse: all of the group's columns of own rows -> own columns of all workers' rows.

        Args:
          tables, purpose: as for `fetch`.
          rows: [i][q], the columns [counts[r][i], …] that worker q holds.
          counts: [q][i], how many rows of the i-th of the tables worker q sends.

        Returns:
          Of each [sum of counts[q][i] over q, own columns], by worker.
        """
        r, widths = self.index, [self._widths[t] for t in tables]
        numbers = range(len(widths))
        message = tf.concat([tf.reshape(rows[i][q], [-1]) for q in self.workers for i in numbers], axis=0)
        outgoing = [[counts[r][i] * widths[i][q] for i in numbers] for q in self.workers]
        received = self._swap(message, outgoing, purpose)
        incoming = [[row[i] * widths[i][r] for i in numbers] for row in counts]
        return [
            tf.reshape(flat, [tf.add_n([row[i] for row in counts]), widths[i][r]])
            for i, flat in enumerate(_by_table(received, incoming))
        ]

    def _swap(self, message, outgoing, purpose):
        """Sends `outgoing` [q][i] elements of the message to worker q; returns what came, by worker."""
        splits = tf.stack([tf.add_n(row) for row in outgoing])
        return self._collectives.all_to_all(
            message, splits, group=self._group, purpose=purpose
        )[0]


def _cut(flat: tf.Tensor, sizes) -> list[list[tf.Tensor]]:
    """The parts of an array that is cut into sizes [q][t], worker by worker."""
    number = len(sizes[0])
    parts = tf.split(flat, tf.stack([size for row in sizes for size in row]), num=len(sizes) * number)
    return [parts[begin : begin + number] for begin in range(0, len(parts), number)]


def _by_worker(flats: Sequence[tf.Tensor], sizes) -> tf.Tensor:
    """One array, worker by worker, from one of each table, in which worker q has sizes[q][t] elements."""
    if len(flats) == 1:
        return flats[0]  # it is in that order; a copy takes as long as some milliseconds of network
    by_table = [
        tf.split(flat, tf.stack([row[t] for row in sizes]), num=len(sizes)) for t, flat in enumerate(flats)
    ]
    return tf.concat([part for of_worker in zip(*by_table, strict=True) for part in of_worker], axis=0)


def _by_table(flat: tf.Tensor, sizes) -> list[tf.Tensor]:
    """The reverse: one array of each table from one that is ordered by worker."""
    if len(sizes[0]) == 1:
        return [flat]
    return [tf.concat(parts, axis=0) for parts in zip(*_cut(flat, sizes), strict=True)]
