"""Clocks: what is put out of step is found, and bars stand where they stood."""

import dataclasses

import numpy as np
import pytest

from tf_sparse_strategy import clocks
from tf_sparse_strategy.trace import COMPUTE, STEPS, Span


def run(seed, steps=9):
    """Three ranks on two nodes, one clock: operations end within some microseconds of each other."""
    random = np.random.default_rng(seed)
    ranks = {rank: [] for rank in range(3)}
    for step in range(steps):
        for place in ("g.all_reduce_sum.f.0", "w.all_gather.f.0", "b.broadcast.f.0"):
            start = 10_000 * step + 3000 * len(place)
            begins = start + random.integers(0, 900, 3)
            end = int(begins.max()) + int(random.integers(100, 400))
            for rank, begin in enumerate(begins):
                late = int(random.integers(0, 40))
                if "broadcast" in place and rank == 0:
                    late = -5000  # its root need not wait
                ranks[rank].append(Span(place, "", int(begin), end + late, {"step": step}))
    for spans in ranks.values():
        spans += [Span(STEPS, "", 0, 10_000 * steps, {}), Span(COMPUTE, "", 7, 9, {})]
    return ranks


@pytest.mark.parametrize("apart", [0, 12_345_678, -987_654])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_out_of_step_is_found(apart, seed):
    true, nodes = run(seed), [0, 1, 1]
    shown = {
        rank: [
            dataclasses.replace(s, begin=s.begin + apart * nodes[rank], end=s.end + apart * nodes[rank])
            for s in spans
        ]
        for rank, spans in true.items()
    }
    found = clocks.offsets(shown, nodes)
    assert found[0] == 0 and abs(found[1] - apart) <= 40
    for rank, spans in clocks.aligned(shown, nodes, found).items():
        for ours, expected in zip(spans, true[rank], strict=True):
            assert abs(ours.begin - expected.begin) <= 40
            assert (ours.line, ours.end - ours.begin) == (expected.line, expected.end - expected.begin)


def test_nothing_ends_before_it_has_begun_everywhere():
    """A node whose operations always end later than the others': the median alone would contradict itself."""
    ranks = {
        0: [Span("g.all_reduce_sum.f.0", "", 100, 110, {"step": s}) for s in range(3)],
        1: [Span("g.all_reduce_sum.f.0", "", 100, 150, {"step": s}) for s in range(2)]
        + [Span("g.all_reduce_sum.f.0", "", 105, 112, {"step": 2})],
    }
    assert clocks.offsets(ranks, [0, 1]) == {0: 0, 1: 12}


def test_ranks_of_one_node_and_strangers_stay():
    ranks = {
        0: [Span("g.all_reduce_sum.f.0", "", 100, 110, {"step": 0})],
        1: [Span("g.all_reduce_sum.f.0", "", 500, 510, {"step": 0})],
        2: [Span("other.all_reduce_sum.f.0", "", 500, 510, {"step": 0})],
    }
    assert set(clocks.offsets(ranks, [0, 0, 1]).values()) == {0}
