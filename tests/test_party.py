"""Which columns go through which worker of a node."""

import numpy as np
import pytest

from tf_sparse_strategy.embedding.partition import ColumnPartition
from tf_sparse_strategy.embedding.party import holders, joined, shared_out
from tf_sparse_strategy.topology import Topology

PLACES = [(0, 0, 1, 1), (0, 1, 1, 0), (0, 1, 2, 2, 1, 0), (0, 0, 0, 1, 1, 1), (0, 1, 0, 1, 2, 2, 3, 3)]


@pytest.mark.parametrize("columns", [1, 5, 8, 19])
@pytest.mark.parametrize("nodes", PLACES, ids=str)
def test_what_is_shared_out_can_be_joined(nodes, columns):
    widths = ColumnPartition(7, columns, len(nodes)).widths
    table = np.arange(7.0 * columns).reshape(7, columns)
    for rank, node in enumerate(nodes):
        by = holders(Topology(nodes, rank))
        parts = shared_out(table, widths, by)
        assert len(by) == nodes.count(node) and sum(part.shape[1] for part in parts) == columns
        np.testing.assert_array_equal(joined(parts, widths, by), table)


@pytest.mark.parametrize("nodes", PLACES, ids=str)
def test_each_worker_receives_from_its_own_kind(nodes):
    """Those that it exchanges with among the nodes, itself among them; nobody's columns twice."""
    for rank, node in enumerate(nodes):
        by = holders(Topology(nodes, rank))
        assert sorted(q for ranks in by for q in ranks) == list(range(len(nodes)))
        own = [other for other, where in enumerate(nodes) if where == node]
        assert all(worker in ranks for worker, ranks in zip(own, by, strict=True))
        assert all(len({nodes[q] for q in ranks}) == len(ranks) for ranks in by)
