"""Predicted times: by hand, against bytes by formula, and recovered from noisy timings."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_sparse_strategy import cost_model, traffic
from tf_sparse_strategy.communication import (
    Dense,
    GTopK,
    Guarded,
    HiTopK,
    OkTopK,
    ShardedTopK,
    TopKAllGather,
    Torus2D,
)
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.topology import Group, Topology
from tf_sparse_strategy.traffic import Bytes

# Each parameter in decimal digits of its own, so that a sum shows what it is made of.
MODEL = LinkModel(
    local_alpha=1e9, local_beta=1.0, cross_alpha=1e12, cross_beta=1e4, phase=1e15
)
PLACEMENTS = [(0,), (0, 0), (0, 1), (0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 2, 2)]
placements = st.lists(st.integers(0, 3), min_size=1, max_size=9)
COLLECTIVES = {
    "all_reduce": cost_model.all_reduce,
    "reduce_scatter": cost_model.reduce_scatter,
    "all_gather": cost_model.all_gather,
    "all_to_all": cost_model.all_to_all,
}


def workers(nodes):
    return [Topology.from_node_keys(nodes, rank) for rank in range(len(nodes))]


def per_node(topology, values):
    return [
        sum(value for value, node in zip(values, topology.nodes, strict=True) if node == wanted)
        for wanted in set(topology.nodes)
    ]


def all_costs(topology, n, model=MODEL):
    """Every collective over every group."""
    found = {
        (name, group.name): predict(topology, n, model, group)
        for name, predict in COLLECTIVES.items()
        for group in Group
    }
    return found | {("broadcast", "GLOBAL"): cost_model.broadcast(topology, n, model)}


def test_all_to_alls_and_what_is_made_of_them_start_later():
    topology = Topology((0, 0, 1, 1), 0)
    soon, later = (
        all_costs(topology, 1000, dataclasses.replace(MODEL, exchange=more)) for more in (0.0, 1e18)
    )
    started = {key: round((later[key].seconds - soon[key].seconds) / 1e18, 6) for key in soon}
    everywhere = ("reduce_scatter", "all_to_all")
    assert started == {
        **{(name, group): 1 for name in everywhere for group in ("GLOBAL", "LOCAL", "CROSS")},
        **{("all_gather", group): 1 for group in ("LOCAL", "CROSS")},
        **{("all_reduce", group): 2 for group in ("LOCAL", "CROSS")},
        ("reduce_scatter", "GLOBAL"): 2,
        **{(name, "GLOBAL"): 0 for name in ("all_gather", "all_reduce", "broadcast")},
    }


def test_one_worker_costs_nothing():
    for cost in all_costs(Topology((0,), 0), 1000).values():
        assert cost == Cost()


@given(st.integers(2, 6), st.integers(0, 1 << 30))
def test_on_one_node_no_link_between_nodes_counts(p, n):
    free = dataclasses.replace(MODEL, cross_alpha=0.0, cross_beta=0.0)
    topology = Topology((0,) * p, p - 1)
    assert all_costs(topology, n) == all_costs(topology, n, free)
    assert all(cost.bytes.cross == 0 for cost in all_costs(topology, n).values())


@given(placements, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_more_bytes_never_take_less_time(nodes, n, more):
    topology = workers(nodes)[0]
    after = all_costs(topology, n + more)
    for name, cost in all_costs(topology, n).items():
        assert cost.seconds <= after[name].seconds, name


@given(placements, st.integers(0, 1 << 30))
def test_all_workers_predict_the_same_time(nodes, n):
    times = [{k: c.seconds for k, c in all_costs(w, n).items()} for w in workers(nodes)]
    assert all(time == times[0] for time in times)


@pytest.mark.parametrize("nodes", PLACEMENTS)
@pytest.mark.parametrize("group", Group)
def test_all_to_all_loads_are_those_of_the_busiest_worker_and_node(nodes, group):
    """Against `traffic`, worker by worker."""
    n = 5 * math.lcm(*range(1, len(nodes) + 1))
    everyone = workers(nodes)
    sent = [traffic.all_to_all(worker, group, n) for worker in everyone]
    only_local = LinkModel(0.0, 1.0, 0.0, 0.0)
    only_cross = LinkModel(0.0, 0.0, 0.0, 1.0)
    for worker, own in zip(everyone, sent, strict=True):
        local = cost_model.all_to_all(worker, n, only_local, group)
        cross = cost_model.all_to_all(worker, n, only_cross, group)
        assert local.bytes == cross.bytes == own
        assert local.seconds == max(bytes.local for bytes in sent)
        assert cross.seconds == max(per_node(worker, [bytes.cross for bytes in sent]))


@pytest.mark.parametrize("nodes", PLACEMENTS)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_ring_loads_are_those_of_the_busiest_worker_and_node(nodes, kind):
    n = 7 * len(nodes)
    everyone = workers(nodes)
    formula = {"all_reduce": traffic.ring_all_reduce, "all_gather": traffic.ring_all_gather}[kind]
    sent = [formula(worker, n) for worker in everyone]
    for worker, own in zip(everyone, sent, strict=True):
        local = COLLECTIVES[kind](worker, n, LinkModel(0.0, 1.0, 0.0, 0.0))
        cross = COLLECTIVES[kind](worker, n, LinkModel(0.0, 0.0, 0.0, 1.0))
        assert local.bytes == own
        assert local.seconds == max(bytes.local for bytes in sent)
        assert cross.seconds == max(per_node(worker, [bytes.cross for bytes in sent]))


def test_all_reduce_by_hand():
    # P = 4: six hops of 100 bytes; one worker per node sends across, 600 bytes.
    two_by_two = Topology((0, 0, 1, 1), 0)
    expected = 1e15 + 6 * 1e12 + 600 * 1e4
    assert cost_model.all_reduce(two_by_two, 400, MODEL) == Cost(
        expected, Bytes(cross=600), messages=Bytes(cross=6)
    )
    # Where ranks alternate between the nodes, both workers of a node share its link.
    alternating = Topology((0, 1, 0, 1), 0)
    assert cost_model.all_reduce(alternating, 400, MODEL).seconds == expected + 600 * 1e4
    one_node = Topology((0,) * 4, 0)
    assert cost_model.all_reduce(one_node, 400, MODEL).seconds == 1e15 + 6e9 + 600


def test_groups_by_hand():
    topology = Topology((0, 0, 1, 1), 0)
    # Inside the node: half of 400 bytes to the other; the empty messages go to other nodes.
    assert cost_model.reduce_scatter(topology, 400, MODEL, Group.LOCAL) == Cost(
        1e15 + 2e12 + 200, Bytes(local=200), messages=Bytes(local=1)
    )
    # Between nodes: each of two workers sends half of 400 bytes over the node's link.
    assert cost_model.reduce_scatter(topology, 400, MODEL, Group.CROSS) == Cost(
        1e15 + 2e12 + 2 * 200 * 1e4, Bytes(cross=200), messages=Bytes(cross=1)
    )
    assert cost_model.all_gather(topology, 400, MODEL, Group.LOCAL).seconds == 1e15 + 2e12 + 400
    # A node's sum crosses its link once; flat, each worker's part would, as where nodes differ.
    assert cost_model.reduce_scatter(topology, 400, MODEL) == Cost(
        2 * (1e15 + 2e12) + 200 + 2 * 100 * 1e4, Bytes(200, 100), messages=Bytes(1, 1)
    )
    uneven = Topology((0, 0, 1), 0)
    assert cost_model.reduce_scatter(uneven, 300, MODEL) == cost_model.all_to_all(uneven, 300, MODEL)
    twice = cost_model.all_reduce(topology, 400, MODEL, Group.CROSS)
    assert twice == Cost(2 * (1e15 + 2e12 + 400 * 1e4), Bytes(cross=400), messages=Bytes(cross=2))


def test_a_slow_link_inside_hides_a_fast_one_between():
    topology, n = Topology((0, 0, 1, 1), 0), 1 << 20
    slow_inside = LinkModel(0.0, 1e-6, 0.0, 1e-9)
    assert cost_model.all_reduce(topology, n, slow_inside).seconds == 1.5 * n * 1e-6


def test_broadcast_by_hand():
    # Rounds: 0 to 1 (inside), then 0 to 2 and 1 to 3, both over node 0's link.
    cost = cost_model.broadcast(Topology((0, 0, 1, 1), 0), 10, MODEL)
    assert cost.seconds == 1e15 + 8 * 1e12 + 10 + 2 * 10 * 1e4
    assert cost.bytes == Bytes(local=10, cross=10) and cost.messages == Bytes(local=1, cross=1)
    assert cost_model.broadcast(Topology((0, 0, 1), 0), 10, MODEL).seconds == (
        1e15 + 8 * 1e12 + 10 + 10 * 1e4
    )


# Of worker 0 of four nodes of two workers: one inside the node and one back; three others of its place.
MESSAGES = {
    Dense: Bytes(cross=14),  # a ring, against the order of ranks
    Torus2D: Bytes(local=2, cross=6),
    TopKAllGather: Bytes(local=7),  # a ring, in the order of ranks
    HiTopK: Bytes(local=2, cross=3),
    ShardedTopK: Bytes(local=2, cross=6),
    GTopK: Bytes(local=2, cross=2),  # two rounds of a tree to its root and back: it only sends back
}


@pytest.mark.parametrize("scheme", MESSAGES)
def test_messages_by_hand(scheme):
    pairs = Topology((0, 0, 1, 1, 2, 2, 3, 3), 0)
    assert scheme().cost(10_000, pairs, MODEL).messages == MESSAGES[scheme]


def test_messages_of_oktopk_by_hand():
    """Of worker 0 of four nodes of two: 3 of its place twice, a ring of all for what is noted, one inside and
    one back; thresholds are renewed in every second step, here, and boundaries in every third."""
    pairs = Topology((0, 0, 1, 1, 2, 2, 3, 3), 0)
    scheme = OkTopK(threshold_period=2, boundary_period=3)
    consensus = cost_model.all_reduce(pairs, 24, MODEL, Group.CROSS).every(3).messages
    always = Bytes(local=2, cross=6) + cost_model.all_gather(pairs, 8, MODEL).messages
    renewal = cost_model.all_gather(pairs, 400, MODEL, Group.CROSS).every(2).messages
    assert scheme.cost(10_000, pairs, MODEL).messages == always + renewal + consensus


def test_a_guard_costs_its_checks():
    """Of each second step: exact sums, also with what is kept, eps's maximum, and two selections."""
    pairs, n = Topology((0, 0, 1, 1), 0), 10_000
    model = dataclasses.replace(MODEL, selection=1e17)
    for plain, sent in ((HiTopK(0.01), 8), (HiTopK(0.01, error_feedback=False), 4)):
        guarded = Guarded(plain, 1.0, every=2)
        sums = cost_model.all_reduce(pairs, sent * n, model) + cost_model.all_reduce(pairs, 4, model)
        check = sums.seconds + 2 * cost_model.selection(n, model).seconds
        assert guarded.cost(n, pairs, model).seconds == pytest.approx(
            plain.cost(n, pairs, model).seconds + check / 2
        )


def test_messages_of_what_is_done_now_and_then():
    assert Cost(6.0, Bytes(10, 0), Bytes(3, 4)).every(4) == Cost(1.5, Bytes(3, 0), Bytes(1, 1))


@pytest.mark.parametrize("scheme", [Dense(), Torus2D()])
def test_schemes_are_the_sum_of_their_collectives(scheme):
    topology, n = Topology((0, 0, 1, 1, 2, 2), 3), 12 * 1000
    local, cross = Group.LOCAL, Group.CROSS
    expected = {
        Dense: lambda: cost_model.all_reduce(topology, 4 * n, MODEL),
        Torus2D: lambda: cost_model.reduce_scatter(topology, 4 * n, MODEL, local)
        + cost_model.all_reduce(topology, 2 * n, MODEL, cross)
        + cost_model.all_gather(topology, 2 * n, MODEL, local),
    }[type(scheme)]()
    assert scheme.cost(n, topology, MODEL) == expected


def test_torus_pays_where_links_are_slow_and_not_where_latency_rules():
    """4 nodes of 2 workers, links of 200 Mbit/s and of next to nothing."""
    topology = Topology((0, 0, 1, 1, 2, 2, 3, 3), 0)
    slow = LinkModel(3e-5, 5e-10, 1e-4, 8e-9 / 0.2, phase=2e-3)
    large, small = 1 << 22, 1 << 8
    assert Torus2D().cost(large, topology, slow).seconds < Dense().cost(large, topology, slow).seconds
    assert Torus2D().cost(small, topology, slow).seconds > Dense().cost(small, topology, slow).seconds


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(LinkModel)])
@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_impossible_models_are_refused(field, wrong):
    if field == "selection_start" and wrong == -1e-9:
        dataclasses.replace(MODEL, selection_start=wrong)  # a correction, which may go either way
        return
    with pytest.raises(ValueError, match=rf"LinkModel\({field}=.*tss doctor --measure"):
        dataclasses.replace(MODEL, **{field: wrong})


def test_models_are_kept_as_json():
    model = LinkModel(1 / 3, 1e-300, 0.0, 5e-324, phase=math.pi)
    assert LinkModel.from_json(model.to_json()) == model


@given(st.floats(1e-6, 1e-2), st.floats(1e-10, 1e-6))
def test_a_line_without_noise_is_recovered(alpha, beta):
    samples = {n: [alpha + beta * n] * 3 for n in (1 << 18, 1 << 20, 1 << 22)}
    found_alpha, found_beta = cost_model.fit_line(samples)
    assert found_beta == pytest.approx(beta, rel=1e-6)
    assert found_alpha == pytest.approx(alpha, abs=1e-6 * (alpha + beta * (1 << 22)))


@pytest.mark.parametrize("seed", range(20))
def test_a_line_is_recovered_from_noisy_timings(seed):
    """5 % of noise, and a quarter of one size's timings disturbed by something of half a second."""
    rng = random.Random(seed)
    alpha, beta = 2e-3, 8e-9 / 0.2
    small, large = 1 << 20, 1 << 22
    samples = {n: [(alpha + beta * n) * rng.gauss(1, 0.05) for _ in range(15)] for n in (small, large)}
    samples[large][::4] = [seconds + 0.5 for seconds in samples[large][::4]]
    assert cost_model.fit_line(samples)[1] == pytest.approx(beta, rel=0.15)
    means = {n: [sum(times) / len(times)] for n, times in samples.items()}
    assert cost_model.fit_line(means)[1] > 2 * beta  # negative control


def test_neither_part_of_a_line_is_negative():
    assert cost_model.fit_line({1: [2.0], 2: [1.0]}) == (1.5, 0.0)
    assert cost_model.fit_line({1: [1.0], 2: [4.0]}) == (0.0, 3.0)
