"""One lookup in divided tables: ids to all, rows back by one all-to-all, their gradients by another.

With u_r distinct ids on worker r, their columns come from all workers, and the gradient of the rows goes the
same way back:

    forward   rows_r = [T_0[ids_r] | … | T_{P-1}[ids_r]]          all-to-all, u_r D elements received
    backward  dT_q   = sum_r scatter(ids_r, drows_r[columns of q]) all-to-all, u_r D elements sent

Every worker learns all ids (int32) and gathers its columns for all; gradients of repeated ids are added up
before they travel, in the table's dtype. Bytes sent by a worker, with u ids on each and s bytes per element:

    2 (P-1)/P u D s + 4 (P-1) (u + 1)

Where several nodes have equally many workers, more than one, nodes take the workers' place: party.py. The
other way, all-gathering the gradient's rows, costs (P-1) u (D s + 4): more from P = 3 on, and every worker
keeps the whole table and its slots.

Source: EmbRace (Li et al., ICPP 2022), section 4.1.
"""

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.columns import Columns
from tf_sparse_strategy.embedding.party import Alone, Node
from tf_sparse_strategy.embedding.requests import Request, checked, distinct
from tf_sparse_strategy.scheduling.early import missing_first
from tf_sparse_strategy.scheduling.split import Split
from tf_sparse_strategy.topology import Group


class Exchange:
    """One lookup in tables of one strategy. Indices: q party, t table.

    Args:
      requests: of this worker, as many on all workers.
      held: the slices that the tables are among.
    """

    def __init__(self, requests: Sequence[Request], held: slices.Slices):
        self.requests = requests
        partitions = [slices.of(request.table).partition for request in requests]
        self.widths = [held.widths(partition) for partition in partitions]  # [t][worker of the group]
        self.columns = Columns(held.collectives, held.group, self.widths)
        together = held.group is Group.CROSS
        self.party = Node(requests, held) if together else Alone(held.collectives.topology)
        self.tables = range(len(requests))
        self.delayed = held.delayed
        self.announced = [self.delayed and self.delayed.announced(request.table) for request in requests]
        following = [
            distinct(dataclasses.replace(request, ids=known.ids))[0]
            for request, known in zip(requests, self.announced, strict=True)
            if known is not None
        ]
        wanted, following = self.party.together([distinct(request) for request in requests], following)
        wanted, self.early, lacking = self._without_early(wanted)
        self.places = [place for _, place in wanted]
        lists = [*(ids for ids, _ in wanted), *following]
        lists += [lacking] if following else []
        found, counts = self.columns.ids_of_all(lists, "embedding_ids")
        self.ids, self.counts = found[: len(requests)], [row[: len(requests)] for row in counts]
        self.mine = [tf.size(ids) for ids, _ in wanted]  # u_t
        self.lacking = self.counts  # [q][t], how many of those rows are to be sent
        if following:
            by_party = tf.reshape(found[-1], [len(self.columns.workers), len(requests)])
            self.lacking = [tf.unstack(tf.cast(row, tf.int32)) for row in tf.unstack(by_party)]
        self.splits = self._splits(found[len(requests) :], [row[len(requests) :] for row in counts])
        self.read: set[int] = set()  # tables whose rows the loss reads

    def _without_early(self, wanted):
        """`wanted` with the ids first whose rows this party lacks; the other rows; numbers of lacking ids.

        No early rows stand for a table of which none can be.
        """
        ordered, early, lacking = [], [], []
        for (ids, place), request, known in zip(wanted, self.requests, self.announced, strict=True):
            number, rows = tf.size(ids), None
            if known is not None:
                kept = self.delayed.of(request.table).early
                ids, place, number, position = missing_first(ids, place, kept.positions(ids))
                rows = kept.at(position)
            ordered.append((ids, place))
            early.append(rows)
            lacking.append(number)
        return ordered, early, tf.cast(tf.stack(lacking), tf.int64)

    def _splits(self, following, counts):
        """For each table how its gradient may be split, None where the next batch is not known.

        Args:
          following: for each table with a known next batch, its ids, of all parties.
          counts: [q][number of that table], how many of them are party q's.
        """
        splits, number = [], 0
        for t, known in enumerate(self.announced):
            if known is None:
                splits.append(None)
                continue
            own, theirs = [row[t] for row in self.counts], [row[number] for row in counts]
            rows = slices.whole_shape(self.requests[t].table)[0]
            splits.append(Split(self.ids[t], own, self.columns.index, following[number], theirs, rows))
            known.lookups, known.split = known.lookups + 1, splits[-1]
            known.read_early = functools.partial(self._read_early, t, splits[-1])
            number += 1
        return splits

    def _read_early(self, t, split):
        """(ids, rows) of the next batch that this step does not move, for this party. Collective."""
        rows = tf.gather(slices.local(self.requests[t].table), split.early_ids)
        counts = [[number] for number in split.early_counts]
        return split.own_early_ids, self._fetch([t], [rows], counts, "embedding_early")[0]

    def rows(self):
        gathered = []
        for t, request in enumerate(self.requests):
            ids = checked(request, self.ids[t], self.party.names, self._asking(t))
            if self.delayed is not None:
                rows = self.delayed.of(request.table)
                rows.wire_dtype = request.wire_dtype or rows.wire_dtype
                rows.bring_if_among(self.ids[t])
            gathered.append(tf.gather(slices.local(request.table), ids))
        exchanged = self._exchanged()(*gathered)
        exchanged = list(exchanged) if isinstance(exchanged, (list, tuple)) else [exchanged]
        if self.delayed is not None:
            self.delayed.note_arrival(exchanged)
        return [
            # Keras freezes its own variable alone, and a gradient would travel for nothing.
            self._noted(t, rows) if self.requests[t].trained else tf.stop_gradient(rows)
            for t, rows in enumerate(exchanged)
        ]

    def _asking(self, t):
        """For each of `ids[t]` the place among `party.names` of who asks: in this party, which worker."""
        ranks = len(self.party.names) - len(self.columns.workers)
        asking = [tf.fill([row[t]], ranks + q) for q, row in enumerate(self.counts)]
        asking[self.columns.index] = self.party.asking(t, self.places[t], self.mine[t])
        return tf.concat(asking, axis=0)

    def _noted(self, t, rows):
        """`rows`, whose gradient is noted: TensorFlow fills in zeros for what the loss does not read."""

        @tf.custom_gradient
        def noted(x):
            def gradient(of_x):
                self.read.add(t)
                return of_x

            return tf.identity(x), gradient

        return noted(rows)

    def _exchanged(self):
        @tf.custom_gradient
        def exchange(*gathered):
            rows = self._forward(gathered)

            def gradient(*of_rows, variables=None):
                of_gathered = self._backward(of_rows, [g.dtype for g in gathered])
                # The variables are those of the collectives' places in the program.
                return of_gathered if variables is None else (of_gathered, [None] * len(variables))

            return rows, gradient

        return exchange

    def _forward(self, gathered):
        """[all ids, own columns] -> [own ids, all columns], spread to where ids are repeated."""
        wanted = []
        for t, rows in enumerate(gathered):
            if self.early[t] is not None:
                by_party = tf.split(rows, tf.stack([row[t] for row in self.counts]), num=len(self.counts))
                kept = [part[: row[t]] for part, row in zip(by_party, self.lacking, strict=True)]
                rows = tf.concat(kept, axis=0)
            wanted.append(rows)
        fetched = self._fetch(self.tables, wanted, self.lacking, "embedding_rows")
        for t, early in enumerate(self.early):
            if early is not None:
                fetched[t] = tf.concat([fetched[t], tf.cast(early, fetched[t].dtype)], axis=0)
        return self.party.spread(fetched, self.places)

    def _fetch(self, tables, rows, counts, purpose):
        """`Columns.fetch`, put together, in the dtypes that were asked for."""
        requests = [self.requests[t] for t in tables]
        sent = [request.sent(own) for own, request in zip(rows, requests, strict=True)]
        received = self.columns.fetch(tables, sent, counts, purpose)
        return [
            tf.cast(tf.concat(columns, axis=1), request.dtype)
            for columns, request in zip(received, requests, strict=True)
        ]

    def _backward(self, of_rows, dtypes):
        """[own ids, all columns] -> [all ids, own columns], gradients of repeated ids added up first.

        Delayed rows stay behind, and are zeros in what is returned; None of a table that nothing reads.
        """
        tables = sorted(self.read) or list(self.tables)  # in forward mode nothing is noted before
        self.read.clear()  # a tape may ask again
        counts = [list(row) for row in self.counts]
        splits = [
            split if split is not None and known.lookups == 1 else None
            for split, known in zip(self.splits, self.announced, strict=True)
        ]
        sums = self.party.collect(
            tables,
            [tf.cast(tf.convert_to_tensor(of_rows[t]), dtypes[t]) for t in tables],
            [self.places[t] for t in tables],
            [self.mine[t] for t in tables],
        )
        sent = []
        for t, summed in zip(tables, sums, strict=True):
            rows = self.requests[t].sent_back(summed)
            if splits[t] is not None:
                rows = splits[t].prior(rows)
                for row, number in zip(counts, splits[t].counts, strict=True):
                    row[t] = number
            sent.append(tf.split(rows, self.widths[t], axis=1))
        counts = [[row[t] for t in tables] for row in counts]
        results = [None] * len(self.requests)
        received = self.columns.send(tables, sent, counts, "embedding_gradients")
        for t, rows in zip(tables, received, strict=True):
            rows = tf.cast(rows, dtypes[t])
            results[t] = rows if splits[t] is None else splits[t].spread(rows)
        return results
