"""Residuals fit another run: nothing is lost, nothing is rounded that need not be."""

import numpy as np
import pytest

from tf_sparse_strategy import resharding
from tf_sparse_strategy.resharding import Layout

SIZES = (7, 0, 1, 12, 5)
BUCKETS = [((4, 3, 2, 1, 0),), ((4, 3), (2, 1, 0)), ((4,), (3,), (2,), (1, 0))]


def layout(holders, shards, buckets=BUCKETS[0]):
    places = tuple((h, s) for h in range(holders) for s in range(shards))
    return Layout(SIZES, buckets, places)


def residuals(where, rng):
    """Each bucket's shards: random whole numbers, zeros where shards are padded."""
    found = []
    for positions in where.buckets:
        n = sum(SIZES[p] for p in positions)
        length = -(-n // where.shards)
        whole = rng.integers(-99, 100, (where.holders, n)).astype(np.float32)
        whole = np.pad(whole, [(0, 0), (0, length * where.shards - n)])
        shards = whole.reshape(where.holders, where.shards, length)
        found.append([shards[h, s] for h, s in where.places])
    return found


def moved(old, new, saved):
    tensors = resharding.merge(old, saved)
    by_rank = [resharding.split(new, tensors, rank) for rank in range(len(new.places))]
    return [list(shards) for shards in zip(*by_rank, strict=True)]


def sums(where, saved):
    """Each tensor's sum over holders, put together by hand."""
    total = {p: np.zeros(SIZES[p]) for p in range(len(SIZES))}
    for positions, shards in zip(where.buckets, saved, strict=True):
        for holder in range(where.holders):
            parts = {s: x for (h, s), x in zip(where.places, shards, strict=True) if h == holder}
            whole = np.concatenate([parts[s] for s in range(where.shards)])
            for p in positions:
                total[p] += whole[: SIZES[p]]
                whole = whole[SIZES[p] :]
            assert not whole.any()  # padding
    return total


@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("new", [(1, 1), (2, 2), (3, 1), (1, 4), (5, 3)])
@pytest.mark.parametrize("old", [(1, 1), (2, 2), (4, 1), (2, 3)])
def test_the_sum_is_kept(old, new, buckets):
    rng = np.random.default_rng(0)
    before, after = layout(*old), layout(*new, buckets)
    saved = residuals(before, rng)
    got = moved(before, after, saved)
    for position, expected in sums(before, saved).items():
        np.testing.assert_array_equal(sums(after, got)[position], expected)


def test_the_same_run_gets_every_bit_back():
    where = layout(2, 3, BUCKETS[1])
    saved = residuals(where, np.random.default_rng(1))
    saved[0][0][:2] = np.float32([-0.0, 1e-45])
    for one, other in zip(saved, moved(where, where, saved), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


def test_other_shards_and_more_holders_round_nothing():
    """Values so far apart that adding any two would lose one."""
    before, after = layout(2, 2), layout(3, 4, BUCKETS[2])
    [shards] = residuals(before, np.random.default_rng(2))
    saved = [[shard * np.float32(10.0 ** (9 * rank)) for rank, shard in enumerate(shards)]]
    assert _values(moved(before, after, saved)) == _values(saved)


def _values(found):
    return sorted(x for shards in found for shard in shards for x in shard if x)


def test_fewer_holders_get_others_in_turn():
    before, after = layout(3, 1), layout(2, 1)
    saved = [[np.full(sum(SIZES), h + 1, np.float32) for h in range(3)]]
    got = moved(before, after, saved)
    assert [shard[0] for shard in got[0]] == [1 + 3, 2]


def test_tensors_that_no_bucket_held_start_from_zero():
    before = Layout(SIZES, ((3, 0),), ((0, 0),))
    got = moved(before, layout(1, 1), [[np.ones(19, np.float32)]])
    np.testing.assert_array_equal(got[0][0], [0] * 5 + [1] * 12 + [0] + [1] * 7)
