"""Who is whose neighbour, for every placement of ranks on nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_sparse_strategy.topology import Group, Topology

TWO_BY_TWO = (0, 0, 1, 1)
ROUND_ROBIN = (0, 1, 0, 1)
UNEVEN = (0, 0, 1)

placements = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def everyone(nodes):
    return [Topology(nodes=nodes, rank=rank) for rank in range(len(nodes))]


@pytest.mark.parametrize(
    "nodes, local, cross",
    [
        ((0,), [(0,)], [(0,)]),
        ((0, 0), [(0, 1)] * 2, [(0,), (1,)]),
        ((0, 1), [(0,), (1,)], [(0, 1)] * 2),
        (TWO_BY_TWO, [(0, 1)] * 2 + [(2, 3)] * 2, [(0, 2), (1, 3)] * 2),
        (ROUND_ROBIN, [(0, 2), (1, 3)] * 2, [(0, 1), (0, 1), (2, 3), (2, 3)]),
        (UNEVEN, [(0, 1), (0, 1), (2,)], [(0, 2), (1,), (0, 2)]),
    ],
)
def test_groups(nodes, local, cross):
    for rank, topology in enumerate(everyone(nodes)):
        assert topology.ranks(Group.GLOBAL) == tuple(range(len(nodes)))
        assert topology.ranks(Group.LOCAL) == local[rank]
        assert topology.ranks(Group.CROSS) == cross[rank]


def test_figures_of_uneven_nodes():
    topology = Topology(nodes=(0, 1, 0, 0, 1), rank=4)
    assert (topology.num_workers, topology.num_nodes, topology.node_sizes) == (5, 2, (3, 2))
    assert (topology.node, topology.local, topology.local_workers) == (1, 1, 2)
    assert not topology.is_uniform
    assert topology.ranks(Group.CROSS) == (2, 4)
    assert topology.index(Group.CROSS) == 1
    assert topology.size(Group.GLOBAL) == 5


@pytest.mark.parametrize(
    "nodes, trivial",
    [
        ((0,), {Group.GLOBAL, Group.LOCAL, Group.CROSS}),
        ((0, 0), {Group.CROSS}),
        ((0, 1), {Group.LOCAL}),
        (TWO_BY_TWO, set()),
        # Rank 2 is alone on its node, and rank 1 across nodes, but others are not: all take part.
        (UNEVEN, set()),
    ],
)
def test_is_trivial_for_all_or_for_none(nodes, trivial):
    for topology in everyone(nodes):
        assert {group for group in Group if topology.is_trivial(group)} == trivial


@pytest.mark.parametrize(
    "nodes, columns",
    [
        (TWO_BY_TWO, (0, 2, 1, 3)),
        (ROUND_ROBIN, (0, 1, 2, 3)),
        ((0, 1, 1, 0), (0, 1, 2, 3)),  # the second column begins on the other node
        ((0, 0, 0, 1, 1, 1), (0, 3, 1, 4, 2, 5)),
    ],
)
def test_columns_of_nodes_of_equal_size(nodes, columns):
    for topology in everyone(nodes):
        assert topology.is_nested
        assert topology.by_column() == columns


@pytest.mark.parametrize("nodes", [(0,), (0, 0), (0, 1), UNEVEN])
def test_nested_is_more_than_nodes_and_more_than_workers(nodes):
    assert not any(topology.is_nested for topology in everyone(nodes))


def test_node_keys_are_numbered_by_first_appearance():
    topology = Topology.from_node_keys(["b", "a", "b", "c"], rank=2)
    assert topology == Topology(nodes=(0, 1, 0, 2), rank=2)


@pytest.mark.parametrize("nodes, rank", [((), 0), ((0, 0), 2), ((0, 0), -1)])
def test_a_rank_outside_is_refused(nodes, rank):
    with pytest.raises(ValueError, match=rf"rank={rank} .* {len(nodes)} workers.*pass 0 <= rank"):
        Topology(nodes=nodes, rank=rank)


@given(placements)
def test_groups_are_partitions_that_all_members_see_alike(keys):
    workers = [Topology.from_node_keys(keys, rank) for rank in range(len(keys))]
    for group in Group:
        for worker in workers:
            members = worker.ranks(group)
            assert members[worker.index(group)] == worker.rank
            assert members == tuple(sorted(set(members)))
            assert all(workers[rank].ranks(group) == members for rank in members)
            assert worker.is_trivial(group) == all(w.size(group) == 1 for w in workers)
    for worker in workers:
        # One worker of each node at most across, and nobody is in both groups twice.
        assert len({worker.nodes[rank] for rank in worker.ranks(Group.CROSS)}) == worker.size(
            Group.CROSS
        )
        assert set(worker.ranks(Group.LOCAL)) & set(worker.ranks(Group.CROSS)) == {worker.rank}


@given(st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_uniform_nodes_form_a_torus(nodes, per_node, random):
    keys = [node for node in range(nodes) for _ in range(per_node)]
    random.shuffle(keys)
    for rank in range(len(keys)):
        topology = Topology.from_node_keys(keys, rank)
        assert topology.is_uniform
        assert topology.size(Group.LOCAL) == topology.local_workers == per_node
        assert topology.size(Group.CROSS) == topology.num_nodes == nodes
