"""Stall and overlap: interval arithmetic against counting microseconds one by one."""

import numpy as np
import pytest

from tf_sparse_strategy import stall
from tf_sparse_strategy.stall import Times
from tf_sparse_strategy.trace import COMPUTE, STEPS, Span

PLACE = "gradients.all_reduce_sum.f.0"


def bars(*intervals):
    return [Span(line, "", begin, end, {"step": 0}) for line, begin, end in intervals]


def covered(intervals):
    return {i for begin, end in intervals for i in range(begin, end)}


@pytest.mark.parametrize("seed", range(20))
def test_unions_and_what_they_have_in_common(seed):
    random = np.random.default_rng(seed)
    pairs = [random.integers(0, [60, 9], (k, 2)).tolist() for k in random.integers(0, 12, 2)]
    a, b = ([(begin, begin + length) for begin, length in some] for some in pairs)
    joined = stall.union(a)
    assert covered(joined) == covered(a)
    assert all(end < begin for (_, end), (begin, _) in zip(joined, joined[1:], strict=False))
    assert stall.common(joined, stall.union(b)) == len(covered(a) & covered(b))


@pytest.mark.parametrize("seed", range(10))
def test_times_are_counted_within_steps(seed):
    random = np.random.default_rng(seed)
    kinds = [COMPUTE, PLACE, "x.broadcast.f.0"]
    steps = [(STEPS, 10, 30), (STEPS, 30, 44), (STEPS, 60, 75)]
    others = [
        (kinds[random.integers(3)], int(x), int(x + random.integers(1, 9)))
        for x in random.integers(0, 80, 30)
    ]
    found = stall.times(bars((COMPUTE, 12, 14), *steps, *others))
    within = covered((b, e) for _, b, e in steps)
    computing = (covered((b, e) for k, b, e in others if k == COMPUTE) | {12, 13}) & within
    communicating = covered((b, e) for k, b, e in others if k != COMPUTE) & within
    expected = [len(x) for x in (within, computing, communicating, computing & communicating)]
    assert found.steps == 3
    np.testing.assert_allclose(
        [found.total, found.computing, found.communicating, found.both], np.array(expected) * 1e-6
    )
    assert found.stall == pytest.approx((expected[0] - expected[1]) / 3e6)
    assert found.overlap == pytest.approx(expected[3] / expected[2])


def test_rates_of_all_workers():
    fast = bars((STEPS, 0, 10), (COMPUTE, 0, 8), (PLACE, 6, 10))
    slow = bars((STEPS, 0, 10), (COMPUTE, 0, 9), (PLACE, 9, 10))
    workers = [stall.times(fast), stall.times(slow)]
    assert stall.rates(workers) == pytest.approx(
        {"computation_stall": 2e-6, "overlap_ratio": 2 / 5}
    )
    assert stall.rates([*workers, stall.times(bars((STEPS, 0, 10)))]) == {}


def test_nothing_to_divide_by():
    assert stall.times(bars((STEPS, 0, 10), (PLACE, 2, 4))) is None
    alone = stall.times(bars((STEPS, 0, 10), (COMPUTE, 0, 8)))
    assert stall.rates([alone]) == pytest.approx({"computation_stall": 2e-6, "overlap_ratio": 0.0})
    assert (Times().stall, Times().overlap) == (0.0, 0.0)
