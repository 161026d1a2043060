"""Looking up rows of tables divided by columns: ids to all, rows back by one all-to-all.

With u_r distinct ids on worker r, their columns come from all workers, and the gradient of the rows goes the
same way back:

    forward   rows_r = [T_0[ids_r] | … | T_{P-1}[ids_r]]          all-to-all, u_r D elements received
    backward  dT_q   = sum_r scatter(ids_r, drows_r[columns of q]) all-to-all, u_r D elements sent

Every worker learns all ids (int32) and gathers its columns for all; gradients of repeated ids are added up
before they travel, in the table's dtype. Bytes sent by a worker, with u ids on each and s bytes per element:

    2 (P-1)/P u D s + 4 (P-1) (u + 1)

The other way, all-gathering the gradient's rows, costs (P-1) u (D s + 4): more from P = 3 on, and every
worker keeps the whole table and its slots.

Source: EmbRace (Li et al., ICPP 2022), section 4.1.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.scheduling.early import missing_first
from tf_sparse_strategy.scheduling.split import Split


@dataclasses.dataclass(frozen=True)
class Request:
    """Rows wanted of one table.

    Args:
      name: the table's, for errors.
      table: the variable, a slice or whole.
      ids: integers [n], negative ones counting from the end.
      dtype: of the result.
      wire_dtype: rows and their gradients travel in it; None for `dtype` forward and the table's backward.
      clip: whether ids out of range mean the nearest row; else they are an error.
      trained: whether the rows' gradients are wanted.
    """

    name: str
    table: Any
    ids: tf.Tensor
    dtype: tf.DType
    wire_dtype: tf.DType | None = None
    clip: bool = False
    trained: bool = True


def lookup(requests: Sequence[Request]) -> list[tf.Tensor]:
    """Rows [n, D] for each request, together in one exchange. Collective when tables are slices.

    Raises:
      tf.errors.InvalidArgumentError: an id is out of range, on all workers.
    """
    held = slices.divided(requests[0].table)
    if held is None:
        return [_from_whole(request, *_distinct(request)) for request in requests]
    counts = held.slices.counts()
    if counts is None:
        return _Exchange(requests, held.slices).rows()
    counted = [dataclasses.replace(r, ids=if_counted(r.ids, counts)) for r in requests]
    exchanged = _Exchange(counted, held.slices).rows()
    return [
        _rows_or_zeros(request, rows, counts) for request, rows in zip(requests, exchanged, strict=True)
    ]


def if_counted(rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """`rows`, or none of them where none counts: an optimizer may move a row whose gradient is zero."""
    return rows[: tf.where(counts, tf.shape(rows)[0], 0)]


def _rows_or_zeros(request: Request, rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """What was looked up, or as many zeros where nothing was."""
    number, width = tf.size(request.ids), slices.whole_shape(request.table)[1]
    if tf.executing_eagerly():  # or a branch without `rows` would send no gradient, for which others wait
        return tf.concat([rows, tf.zeros([number - len(rows), width], rows.dtype)], axis=0)
    return tf.cond(counts, lambda: tf.identity(rows), lambda: tf.zeros([number, width], rows.dtype))


def _distinct(request: Request) -> tuple[tf.Tensor, tf.Tensor]:
    """(the distinct ids as int64, for each given id its place among them)."""
    rows = slices.whole_shape(request.table)[0]
    ids = request.ids
    if ids.dtype == tf.uint64:  # which could turn negative, and so count from the end
        ids = tf.minimum(ids, tf.constant(tf.int64.max, tf.uint64))
    ids = tf.cast(ids, tf.int64)  # 8 and 16 bits cannot count the rows
    ids = tf.where(ids < 0, ids + rows, ids)
    if request.clip:
        ids = tf.clip_by_value(ids, 0, rows - 1)
    ids, place = tf.unique(ids)
    return ids, place


def _checked(request: Request, ids: tf.Tensor, ranks: tf.Tensor) -> tf.Tensor:
    """`ids` as int32, after an assertion that they are rows; `ranks` says whose each is."""
    rows = slices.whole_shape(request.table)[0]
    wrong = tf.where((ids < 0) | (ids >= rows))[:1, 0]
    first = tf.gather(ids, wrong)
    given = tf.where(first < 0, first - rows, first)  # as it was before it counted from the end
    text = f"{request.name!r} has rows 0 to {rows - 1}; ids_out_of_range='clip' takes the nearest. Got id"
    facts = [text, given, "on rank", tf.gather(ranks, wrong)]
    check = tf.debugging.Assert(tf.size(wrong) == 0, facts)
    with tf.control_dependencies([check]):
        return tf.cast(ids, tf.int32)


def _from_whole(request: Request, ids: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(slices.local(request.table), _checked(request, ids, tf.zeros_like(ids)))
    if request.wire_dtype is not None:  # one worker rounds as several do
        rows = tf.cast(tf.cast(rows, request.wire_dtype), rows.dtype)
    # Cast last, so that the gradients of a repeated id are added up in the table's dtype.
    return tf.cast(tf.gather(rows, place), request.dtype)


class _Exchange:
    """One lookup in tables of one strategy. Indices: q worker, t table; r is this worker."""

    def __init__(self, requests, all_slices):
        self.requests = requests
        self.slices = all_slices
        self.workers = range(all_slices.collectives.topology.num_workers)
        self.tables = range(len(requests))
        self.widths = [slices.of(request.table).partition.widths for request in requests]  # [t][q]
        self.delayed = all_slices.delayed
        self.announced = [self.delayed and self.delayed.announced(request.table) for request in requests]
        distinct, self.early, lacking = self._without_early([_distinct(request) for request in requests])
        self.places = [place for _, place in distinct]
        self.mine = [tf.size(ids) for ids, _ in distinct]  # u_t
        following = [
            _distinct(dataclasses.replace(request, ids=known.ids))[0]
            for request, known in zip(requests, self.announced, strict=True)
            if known is not None
        ]
        lists = [ids for ids, _ in distinct] + following
        found, counts = self._ids_of_all([*lists, lacking] if following else lists)
        self.ids, self.counts = found[: len(requests)], [row[: len(requests)] for row in counts]
        self.lacking = self.counts  # [q][t], how many of those rows are to be sent
        if following:
            by_worker = tf.reshape(found[-1], [len(self.workers), len(requests)])
            self.lacking = [tf.unstack(tf.cast(row, tf.int32)) for row in tf.unstack(by_worker)]
        self.splits = self._splits(found[len(requests) :], [row[len(requests) :] for row in counts])
        self.read: set[int] = set()  # tables whose rows the loss reads

    def _without_early(self, distinct):
        """`distinct` with the ids first whose rows this worker lacks; the other rows; numbers of lacking ids.

        No early rows stand for a table of which none can be.
        """
        ordered, early, lacking = [], [], []
        for (ids, place), request, known in zip(distinct, self.requests, self.announced, strict=True):
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
          following: for each table with a known next batch, its ids, of all workers.
          counts: [q][number of that table], how many of them are worker q's.
        """
        splits, number = [], 0
        for t, known in enumerate(self.announced):
            if known is None:
                splits.append(None)
                continue
            own, theirs = [row[t] for row in self.counts], [row[number] for row in counts]
            rows = slices.whole_shape(self.requests[t].table)[0]
            splits.append(Split(self.ids[t], own, self.slices.rank, following[number], theirs, rows))
            known.lookups, known.split = known.lookups + 1, splits[-1]
            known.read_early = functools.partial(self._read_early, t, splits[-1])
            number += 1
        return splits

    def _read_early(self, t, split):
        """(ids, rows) of the next batch that this step does not move, for this worker. Collective."""
        rows = tf.gather(slices.local(self.requests[t].table), split.early_ids)
        [received] = self._fetch([t], [rows], [[n] for n in split.early_counts], "embedding_early")
        return split.own_early_ids, received

    def _ids_of_all(self, ids):
        """(ids of all workers, rank by rank, for each list; how many of list t come from q: [q][t])."""
        limits = tf.int32.min, tf.int32.max
        narrow = [tf.cast(tf.clip_by_value(own, *limits), tf.int32) for own in ids]
        message = tf.concat([tf.stack([tf.size(own) for own in ids]), *narrow], axis=0)
        # An all-gather that tells how much came from whom: an all-to-all of copies.
        copies = tf.tile(message, [len(self.workers)])
        splits = tf.fill([len(self.workers)], tf.size(message))
        received, sizes = self.slices.collectives.all_to_all(copies, splits, purpose="embedding_ids")
        starts = tf.cumsum(sizes, exclusive=True)
        counts = tf.gather(received, starts[:, tf.newaxis] + tf.range(len(ids))[tf.newaxis])
        header = tf.fill([len(self.workers), 1], len(ids))
        lengths = tf.reshape(tf.concat([header, counts], axis=1), [-1])
        runs = tf.split(received, lengths, num=len(self.workers) * (len(ids) + 1))
        by_table = []
        for t, own in enumerate(ids):
            parts = [tf.cast(run, tf.int64) for run in runs[1 + t :: len(ids) + 1]]
            parts[self.slices.rank] = own  # not narrowed, so that an error here names what was given
            by_table.append(tf.concat(parts, axis=0))
        counts = [tf.unstack(row, num=len(ids)) for row in tf.unstack(counts, num=len(self.workers))]
        return by_table, counts

    def rows(self):
        gathered = []
        for t, request in enumerate(self.requests):
            ranks = tf.repeat(tf.range(len(self.workers)), [row[t] for row in self.counts])
            ids = _checked(request, self.ids[t], ranks)
            if self.delayed is not None:
                rows = self.delayed.of(request.table)
                rows.wire_dtype = request.wire_dtype or rows.wire_dtype
                rows.bring_if_among(self.ids[t])
            rows = tf.gather(slices.local(request.table), ids)
            # Keras freezes its own variable alone, and a gradient would travel for nothing.
            gathered.append(rows if request.trained else tf.stop_gradient(rows))
        exchanged = self._exchanged()(*gathered)
        exchanged = list(exchanged) if isinstance(exchanged, (list, tuple)) else [exchanged]
        if self.delayed is not None:
            self.delayed.note_arrival(exchanged)
        return [self._noted(t, rows) for t, rows in enumerate(exchanged)]

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
                by_worker = tf.split(rows, tf.stack([row[t] for row in self.counts]), num=len(self.workers))
                rows = tf.concat([by_worker[q][: self.lacking[q][t]] for q in self.workers], axis=0)
            wanted.append(rows)
        results = []
        for t, rows in enumerate(self._fetch(self.tables, wanted, self.lacking, "embedding_rows")):
            if self.early[t] is not None:
                rows = tf.concat([rows, tf.cast(self.early[t], rows.dtype)], axis=0)
            results.append(tf.gather(rows, self.places[t]))
        return results

    def _fetch(self, tables, rows, counts, purpose):
        """Own columns of rows for all workers -> all columns of this worker's rows. Collective.

        Args:
          tables: numbers t.
          rows: of each, by worker, [sum of counts[q][i] over q, own columns].
          counts: [q][i], for worker q of table i.
          purpose: of the exchange.

        Returns:
          Of each [counts[r][i], D], in the dtype that was asked for.
        """
        r, requests = self.slices.rank, [self.requests[t] for t in tables]
        widths, numbers = [self.widths[t] for t in tables], range(len(tables))
        outgoing = [[row[i] * widths[i][r] for i in numbers] for row in counts]
        flats = [
            tf.reshape(tf.cast(own, request.wire_dtype or request.dtype), [-1])
            for own, request in zip(rows, requests, strict=True)
        ]
        received = self._swap(_by_worker(flats, outgoing), outgoing, purpose)
        incoming = [[counts[r][i] * widths[i][q] for i in numbers] for q in self.workers]
        parts = _cut(received, incoming)
        results = []
        for i, request in enumerate(requests):
            columns = [tf.reshape(parts[q][i], [counts[r][i], widths[i][q]]) for q in self.workers]
            results.append(tf.cast(tf.concat(columns, axis=1), request.dtype))
        return results

    def _backward(self, of_rows, dtypes):
        """[own ids, all columns] -> [all ids, own columns], gradients of repeated ids added up first.

        Delayed rows stay behind, and are zeros in what is returned; None of a table that nothing reads.
        """
        r, blocks = self.slices.rank, [[] for _ in self.workers]
        tables = sorted(self.read) or list(self.tables)  # in forward mode nothing is noted before
        self.read.clear()  # a tape may ask again
        mine, counts = list(self.mine), [list(row) for row in self.counts]
        splits = [
            split if split is not None and known.lookups == 1 else None
            for split, known in zip(self.splits, self.announced, strict=True)
        ]
        for t in tables:
            gradient = tf.cast(tf.convert_to_tensor(of_rows[t]), dtypes[t])
            summed = tf.math.unsorted_segment_sum(gradient, self.places[t], self.mine[t])
            summed = tf.cast(summed, self.requests[t].wire_dtype or dtypes[t])
            if splits[t] is not None:
                summed = splits[t].prior(summed)
                mine[t] = tf.shape(summed)[0]
                for q in self.workers:
                    counts[q][t] = splits[t].counts[q]
            columns = tf.split(summed, self.widths[t], axis=1)
            for q in self.workers:
                blocks[q].append(tf.reshape(columns[q], [-1]))
        outgoing = [[mine[t] * self.widths[t][q] for t in tables] for q in self.workers]
        incoming = [[row[t] * self.widths[t][r] for t in tables] for row in counts]
        message = tf.concat([block for row in blocks for block in row], axis=0)
        received = self._swap(message, outgoing, "embedding_gradients")
        results = [None] * len(self.requests)
        for t, flat in zip(tables, _by_table(received, incoming), strict=True):
            rows = tf.reshape(flat, [tf.add_n([row[t] for row in counts]), self.widths[t][r]])
            rows = tf.cast(rows, dtypes[t])
            results[t] = rows if splits[t] is None else splits[t].spread(rows)
        return results

    def _swap(self, message, outgoing, purpose):
        """Sends `outgoing` [q][t] elements of the message to worker q; returns what came, by worker."""
        splits = tf.stack([tf.add_n(row) for row in outgoing])
        return self.slices.collectives.all_to_all(message, splits, purpose=purpose)[0]


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
