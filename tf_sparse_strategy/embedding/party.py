"""Who asks the others for rows: each worker for itself, or the workers of a node together.

On nested topologies a node asks as one, for the distinct ids of its G workers. A row that several of them
want crosses the link between nodes once, and so does the sum of their gradients of it:

    U_m = union over h of ids_(m,h)                      ids, within node m
    rows of U_m, columns of (1,g), …, (M,g), to (m,g)    ids and rows, among the g-th workers of all nodes
    rows of ids_(m,h), the same columns, to (m,h)        rows, within node m

and gradients go the same way back. Bytes sent by a worker, with u ids on each and U on each node:

    between nodes   2 (M-1)/P U D s + 4 (M-1) (U + 1)    instead of G u for U
    within          2 (G-1)/G u D s + 4 (G-1) (u + 1)    instead of 2 (G-1)/P u D s

in 6 collectives instead of 3. It takes longer where links between nodes are not slower than those within by
(1 - 1/G) / (1 - U/(G u)), or where rows are so few that starting collectives takes the time.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.columns import Columns
from tf_sparse_strategy.embedding.requests import Request
from tf_sparse_strategy.topology import Group, Topology

Wanted = tuple[tf.Tensor, tf.Tensor]  # distinct ids; places among them
Tensors = Sequence[tf.Tensor]


class Alone:
    """A worker that asks for itself.

    Attributes:
      names: of all ranks, then of all parties.
    """

    def __init__(self, topology: Topology):
        self._rank = topology.rank
        self.names = [str(rank) for rank in range(topology.num_workers)] * 2

    def together(self, wanted: list[Wanted], following: Tensors) -> tuple[list[Wanted], Tensors]:
        """From what this worker wants of all tables, and next of some, to what its party does. Collective."""
        return wanted, following

    def asking(self, t: int, place: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """For each of the party's `number` ids of table t a rank that asks for it.

        `place` is that of `together`, perhaps in another order of the ids.
        """
        return tf.fill([number], self._rank)

    def spread(self, rows: Tensors, places: Tensors) -> list[tf.Tensor]:
        """Rows of the party's ids -> all columns of this worker's, repeated as given. Collective."""
        return [tf.gather(of_table, place) for of_table, place in zip(rows, places, strict=True)]

    def collect(
        self, tables: Sequence[int], gradients: Tensors, places: Tensors, numbers: Tensors
    ) -> Tensors:
        """The reverse, of `tables` alone: gradients, in the tables' dtypes, added up by id. Collective."""
        return _added_up(gradients, places, numbers)


class Node:
    """The workers of a node, which ask as one. Each receives some columns of what they want.

    Args:
      requests: of this worker.
      held: the slices that the tables are among.

    Attributes:
      names: see `Alone`.
    """

    def __init__(self, requests: Sequence[Request], held: slices.Slices):
        topology = held.collectives.topology
        self._requests, self._ranks = requests, topology.ranks(Group.LOCAL)
        self._holders = holders(topology)
        self._widths = [slices.of(request.table).partition.widths for request in requests]  # [t][rank]
        columns = [[sum(w[rank] for rank in ranks) for ranks in self._holders] for w in self._widths]
        self._within = Columns(held.collectives, Group.LOCAL, columns)
        nodes = [topology.of(rank).ranks(Group.LOCAL) for rank in topology.ranks(Group.CROSS)]
        self.names = [str(rank) for rank in range(topology.num_workers)]
        self.names += [" or ".join(map(str, ranks)) for ranks in nodes]

    def together(self, wanted: list[Wanted], following: Tensors) -> tuple[list[Wanted], Tensors]:
        """See `Alone`. Places are of the node's workers, one after the other."""
        lists = [*(ids for ids, _ in wanted), *following]
        found, counts = self._within.ids_of_all(lists, "embedding_ids_within")
        self._places, self._counts = [place for _, place in wanted], counts
        merged = [tuple(tf.unique(ids)) for ids in found]
        return merged[: len(wanted)], [ids for ids, _ in merged[len(wanted) :]]

    def asking(self, t: int, place: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """See `Alone`."""
        ranks = tf.repeat(self._ranks, [row[t] for row in self._counts])
        return tf.math.unsorted_segment_min(ranks, place, number)

    def spread(self, rows: Tensors, places: Tensors) -> list[tf.Tensor]:
        """See `Alone`."""
        tables = range(len(rows))
        sent = [self._requests[t].sent(tf.gather(rows[t], places[t])) for t in tables]
        received = self._within.fetch(tables, sent, self._counts, "embedding_rows_within")
        return [
            tf.gather(tf.cast(joined(columns, widths, self._holders), own.dtype), place)
            for columns, widths, own, place in zip(received, self._widths, rows, self._places, strict=True)
        ]

    def collect(
        self, tables: Sequence[int], gradients: Tensors, places: Tensors, numbers: Tensors
    ) -> Tensors:
        """See `Alone`."""
        own = self._counts[self._within.index]
        sums = _added_up(gradients, [self._places[t] for t in tables], [own[t] for t in tables])
        sent = [
            shared_out(self._requests[t].sent_back(summed), self._widths[t], self._holders)
            for t, summed in zip(tables, sums, strict=True)
        ]
        counts = [[row[t] for t in tables] for row in self._counts]
        received = self._within.send(tables, sent, counts, "embedding_gradients_within")
        received = [tf.cast(own, summed.dtype) for own, summed in zip(received, sums, strict=True)]
        return _added_up(received, places, numbers)


def holders(topology: Topology) -> list[tuple[int, ...]]:
    """For each worker of this node the ranks whose columns it receives for the node.

    Example:
      >>> holders(Topology(nodes=(0, 1, 1, 0), rank=0))
      [(0, 1), (2, 3)]
    """
    return [topology.of(rank).ranks(Group.CROSS) for rank in topology.ranks(Group.LOCAL)]


def shared_out(rows: tf.Tensor, widths: Sequence[int], by: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    """Of `rows` [n, D], in which rank q's columns are widths[q] wide, those of the `holders`, for each."""
    columns = tf.split(rows, widths, axis=1)
    return [tf.concat([columns[rank] for rank in ranks], axis=1) for ranks in by]


def joined(parts: Sequence[tf.Tensor], widths: Sequence[int], by: Sequence[tuple[int, ...]]) -> tf.Tensor:
    """The reverse of `shared_out`."""
    columns = {}
    for part, ranks in zip(parts, by, strict=True):
        columns.update(zip(ranks, tf.split(part, [widths[rank] for rank in ranks], axis=1), strict=True))
    return tf.concat([columns[rank] for rank in range(len(widths))], axis=1)


def _added_up(gradients: Tensors, places: Tensors, numbers: Tensors) -> list[tf.Tensor]:
    return [
        tf.math.unsorted_segment_sum(*of_table) for of_table in zip(gradients, places, numbers, strict=True)
    ]
