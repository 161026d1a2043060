"""Bytes by formula, against the algorithms played through message by message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_sparse_strategy import traffic
from tf_sparse_strategy.topology import Group, Topology
from tf_sparse_strategy.traffic import Bytes

PLACEMENTS = [(0,), (0, 0), (0, 1), (0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 2, 2)]
placements = st.lists(st.integers(0, 3), min_size=1, max_size=9)


def workers(nodes):
    return [Topology.from_node_keys(nodes, rank) for rank in range(len(nodes))]


def split(topology, messages):
    """Sums [(peer, bytes)] by link class."""
    here = [n for peer, n in messages if topology.nodes[peer] == topology.node]
    return Bytes(local=sum(here), cross=sum(n for _, n in messages) - sum(here))


def test_bytes_add_up():
    assert Bytes(1, 2) + Bytes(10, 20) == Bytes(local=11, cross=22)
    assert Bytes(1, 2).total == 3


@pytest.mark.parametrize("nodes", PLACEMENTS)
def test_ring_all_reduce(nodes):
    p = len(nodes)
    n = 5 * p
    for topology in workers(nodes):
        steps = range(2 * (p - 1))  # a reduce-scatter and an all-gather of chunks of n/P
        messages = [((topology.rank - 1) % p, n // p) for _ in steps]
        assert traffic.ring_all_reduce(topology, n) == split(topology, messages)


@pytest.mark.parametrize("nodes", PLACEMENTS)
def test_ring_all_gather(nodes):
    p = len(nodes)
    for topology in workers(nodes):
        messages = [((topology.rank + 1) % p, 7) for _ in range(p - 1)]
        assert traffic.ring_all_gather(topology, 7) == split(topology, messages)


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("nodes", PLACEMENTS)
def test_all_to_all(nodes, group):
    for topology in workers(nodes):
        ranks = topology.ranks(group)
        messages = [(peer, 3) for peer in ranks if peer != topology.rank]
        assert traffic.all_to_all(topology, group, 3 * len(ranks)) == split(topology, messages)


@pytest.mark.parametrize("nodes", PLACEMENTS)
def test_broadcast_reaches_everyone_once(nodes):
    p = len(nodes)
    sent = [traffic.binomial_broadcast(topology, 7) for topology in workers(nodes)]
    assert sum(worker.total for worker in sent) == 7 * (p - 1)
    assert all(worker.total <= 7 * (p - 1).bit_length() for worker in sent)
    assert sent[0].total == 7 * (p - 1).bit_length()  # rank 0 sends in every round


def test_broadcast_over_two_nodes_by_hand():
    sent = [traffic.binomial_broadcast(topology, 1) for topology in workers((0, 0, 1, 1))]
    assert sent == [Bytes(local=1, cross=1), Bytes(cross=1), Bytes(), Bytes()]


def test_one_worker_sends_nothing():
    alone = Topology(nodes=(0,), rank=0)
    assert traffic.ring_all_reduce(alone, 100) == Bytes()
    assert traffic.ring_all_gather(alone, 100) == Bytes()
    assert traffic.binomial_broadcast(alone, 100) == Bytes()
    assert all(traffic.all_to_all(alone, group, 100) == Bytes() for group in Group)


@given(placements, st.integers(0, 1 << 40))
def test_sums_over_workers_are_those_of_the_textbook(nodes, unit):
    everyone = workers(nodes)
    p, n = len(nodes), unit * len(nodes)

    def total(formula):
        return sum(formula(topology).total for topology in everyone)

    assert total(lambda t: traffic.ring_all_reduce(t, n)) == 2 * n * (p - 1)
    assert total(lambda t: traffic.ring_all_gather(t, n)) == p * n * (p - 1)
    assert total(lambda t: traffic.all_to_all(t, Group.GLOBAL, n)) == n * (p - 1)
    assert total(lambda t: traffic.binomial_broadcast(t, n)) == n * (p - 1)


@given(placements, st.integers(0, 1 << 20))
def test_groups_stay_on_their_links(nodes, n):
    for topology in workers(nodes):
        assert traffic.all_to_all(topology, Group.LOCAL, n).cross == 0
        assert traffic.all_to_all(topology, Group.CROSS, n).local == 0
