"""Whether to divide a table over the workers or to leave it whole on each; pure.

A table [L, D] of s bytes per element, of which each of P workers needs u distinct rows in a step, costs

| placement | what travels                       | bytes per worker                  |
|-----------|------------------------------------|-----------------------------------|
| columns   | ids; rows; gradients of rows       | 2 (P-1)/P u D s + 4 (P-1) (u + 1) |
| gathered  | ids and gradients of rows, to all  | (P-1) u (D s + 4)                 |
| reduced   | the table's gradient               | 2 (P-1)/P L D s                   |

in 3, 2 and 1 collectives; on nested topologies columns travel in 6, fewer bytes between nodes (party.py).
The gradient of an Embedding layer's table that is left whole is gathered: a row for each id of a batch, if
the same come several times, so that dividing saves at least what the costs say: with two workers nothing, if
none does. It is reduced only where the gradient is a dense tensor, as that of tied or regularized tables,
which nothing here knows of.
"""

import dataclasses

from tf_sparse_strategy import cost_model
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.topology import Group, Topology

_ID = 4  # bytes
# Bytes within a node count a tenth: its workers share the link to other nodes.
BY_BYTES = LinkModel(local_alpha=0, local_beta=1e-10, cross_alpha=0, cross_beta=1e-9)

_MARGIN = 0.9  # a whole table must cost less than this part: it takes more memory, and repeated ids are sent


@dataclasses.dataclass(frozen=True)
class Table:
    """A table [rows, columns] of elements of `itemsize` bytes."""

    rows: int
    columns: int
    itemsize: int = 4


def costs(table: Table, topology: Topology, ids: int, links: LinkModel = BY_BYTES) -> dict[str, Cost]:
    """What a step costs by placement: "columns" (at most, where a node asks as one), "gathered", "reduced".

    Args:
      table: the table.
      topology: of any one worker.
      ids: u, distinct ids of one worker in a step.
      links: the measured links (`tss doctor --measure`); by default only bytes count.

    Example:
      >>> found = costs(Table(rows=800_000, columns=512), Topology((0,) * 8, rank=0), ids=1700)
      >>> found["columns"].bytes.total < found["gathered"].bytes.total < found["reduced"].bytes.total
      True

    Source: EmbRace (Li et al., ICPP 2022), section 4.1.2, table 2.
    """
    row = table.columns * table.itemsize
    if topology.is_nested:
        together = topology.local_workers * ids  # distinct ids of a node: as many as there can be
        among_nodes = exchange(topology, together, row // topology.local_workers, links, Group.CROSS)
        columns = among_nodes + exchange(topology, ids, row, links, Group.LOCAL)
    else:
        columns = exchange(topology, ids, row, links)
    gathered = [cost_model.all_gather(topology, ids * size, links) for size in (row, _ID)]
    return {
        "columns": columns,
        "gathered": gathered[0] + gathered[1],
        "reduced": cost_model.all_reduce(topology, table.rows * row, links),
    }


def exchange(
    topology: Topology, ids: int, row: int, links: LinkModel, group: Group = Group.GLOBAL
) -> Cost:
    """What a lookup and its gradient cost among workers that ask each for itself (columns.py).

    Args:
      topology, links: as for `costs`.
      ids: distinct ones of each worker.
      row: bytes of a row's columns, of all workers of the group together.
      group: who takes part.
    """
    to_all = cost_model.all_to_all(topology, topology.size(group) * _ID * (ids + 1), links, group)
    rows = cost_model.all_to_all(topology, ids * row, links, group)
    return to_all + rows + rows


def reason_to_keep_whole(
    table: Table,
    topology: Topology,
    min_rows: int,
    ids: int | None = None,
    links: LinkModel = BY_BYTES,
) -> str | None:
    """Why `table` should stay whole on every worker; None if it should be divided.

    Args:
      table, topology, links: as for `costs`.
      min_rows: tables with fewer rows stay whole.
      ids: u; None where it is not known, and only the sizes count.

    Example:
      >>> reason_to_keep_whole(Table(500, 64), Topology((0, 0, 0), rank=0), min_rows=10_000)
      'it has 500 rows, fewer than min_rows=10000'
    """
    if table.rows < min_rows:
        return f"it has {table.rows} rows, fewer than min_rows={min_rows}"
    if table.columns < topology.num_workers:
        return f"its {table.columns} columns are fewer than the {topology.num_workers} workers"
    if ids is None or topology.num_workers == 1:
        return None
    found = costs(table, topology, ids, links)
    if found["gathered"].seconds >= _MARGIN * found["columns"].seconds:
        return None
    share = found["gathered"].seconds / found["columns"].seconds
    return f"gathering its gradient's rows is cheaper at {ids} ids per step: {share:.0%} of the cost"
