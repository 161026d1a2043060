"""OkTopK: its thresholds, regions and balancing, which change what is sent, and no sum."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests import sparse_reference
from tests.mstopk_reference import top_k
from tests.multiprocess import sparse_runs
from tests.multiprocess.sparse_runs import FREE, Run, floats, integers
from tf_sparse_strategy.bucketing import MAX_ELEMENTS
from tf_sparse_strategy.communication import OkTopK, oktopk

here = sparse_runs.everywhere


def test_a_gradient_of_few_entries_lets_not_all_of_the_next_pass(here):
    """Thresholds of 0 are not reused: on one worker only, on all, and not at all."""
    p, rank, n, k = here.topology.num_workers, here.topology.rank, 1000, 20
    run = Run(OkTopK(k / n), here, n)
    model = sparse_reference.OkTopK(here.topology.nodes, n, k / n)
    steps = floats(5, p, n, 5)
    steps[0, :, 3:] = 0  # fewer than k entries in every shard
    steps[2, 0] = 0
    applied = []
    for g in steps:
        got, expected = run.step(tf.constant(g[rank])).numpy(), model.step(g)
        tolerance = 0 if model.holders > 1 else 1e-5
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        applied.append(np.count_nonzero(got))
    if model.holders > 1:
        assert applied[0] <= 3 and all(0 < a <= 4 * k * model.holders for a in applied[1:])


def test_with_thresholds_of_every_step_it_is_the_papers(here):
    """Algorithms 1 and 2 with both periods 1, without any of our deviations."""
    p, rank, n, k = here.topology.num_workers, here.topology.rank, 1000, 20
    run = Run(OkTopK(k / n, threshold_period=1, boundary_period=1, flat=True), here, n)
    if p == 1:
        return
    residuals = np.zeros([p, n], np.float32)
    for g in floats(8, p, n, 5):
        accumulated = residuals + g
        chosen = [set(top_k(a, k)) for a in accumulated]
        total = np.zeros(n, np.float32)
        for a, of in zip(accumulated, chosen, strict=True):
            total[sorted(of)] += a[sorted(of)]
        winners = top_k(total, k)
        expected = np.zeros(n, np.float32)
        expected[winners] = total[winners]
        np.testing.assert_array_equal(run.step(tf.constant(g[rank])), expected)
        for kept, a, of in zip(residuals, accumulated, chosen, strict=True):
            kept[:] = a
            kept[sorted(of & set(winners))] = 0
        np.testing.assert_array_equal(run.variables["residual"], residuals[rank])


def test_hits_are_of_the_threshold_as_it_was(here):
    """And not of the one that takes its place because too many pass."""
    p, rank, n, k = here.topology.num_workers, here.topology.rank, 1000, 20
    run = Run(OkTopK(k / n, error_feedback=False, flat=True), here, n)
    if p == 1:
        return
    first, second = floats(3, p, n, 2)[:, rank]
    second = 3 * second
    threshold = np.sort(np.abs(first))[-k]
    for gradient, hits in ((first, k), (second, np.count_nonzero(np.abs(second) >= threshold))):
        run.step(tf.constant(gradient))
        np.testing.assert_allclose(run.variables[oktopk.PASSED], hits / k)
    assert hits > 2 * k and run.variables["local_threshold"].numpy() > threshold


def test_thresholds_outlive_a_step_of_nothing(here):
    """Not as 0, by which the next step would send all of its sums."""
    p, rank, n, k = here.topology.num_workers, here.topology.rank, 1000, 20
    run = Run(OkTopK(k / n, error_feedback=False), here, n)
    holders = run.scheme.share(here.topology).holders
    steps = floats(6, p, n, 9)
    steps[1::2] = 0
    for number, g in enumerate(steps):
        applied = np.count_nonzero(run.step(tf.constant(g[rank])))
        if holders > 1:
            assert run.variables["global_threshold"].numpy() > 0
            assert applied == 0 if number % 2 else applied <= 2 * k * p


def test_of_zeros_nothing_is_sent(here):
    run = Run(OkTopK(0.05), here, 4096)
    if run.scheme.share(here.topology).holders == 1:
        return
    for _ in range(2):
        before = here.traffic()[1].cross
        run.step(tf.zeros([4096]))
        assert here.traffic()[1].cross - before < 4096  # counts, and regions; all would be 32768


@pytest.mark.parametrize("period, steps", [(1, 8), (32, 48)])
def test_oktopk_expects_about_the_bytes_counted(here, period, steps):
    """Also where thresholds are old, and more would pass, the more the residuals grow."""
    p, n = here.topology.num_workers, 4096
    run = Run(OkTopK(0.05, threshold_period=period), here, n)
    before = here.traffic()[1]
    for g in floats(0, p, n, steps):
        run.step(tf.constant(g[here.topology.rank]) / 1000)
    sent = np.array(dataclasses.astuple(here.traffic()[1])) - dataclasses.astuple(before)
    predicted = np.array(dataclasses.astuple(run.scheme.cost(n, here.topology, FREE).bytes)) * steps
    assert (sent <= 2 * predicted).all() and (2 * sent >= predicted).all()


def test_very_uneven_sums_are_dealt_out(here, monkeypatch):
    """All large entries move beyond the last boundary, so that one worker has all sums; nothing changes."""
    p, rank, n = here.topology.num_workers, here.topology.rank, 1000
    data = integers(0, p, n, 3)
    data[0, :, 100:] = 0
    data[1:, :, :900] = 0
    share, deals = OkTopK().share(here.topology), []
    balance = oktopk._balance

    def spy(*args):
        rows = balance(*args)
        deals.append(here.all_gather(tf.shape(rows)[:1], share.group).numpy())
        return rows

    monkeypatch.setattr(oktopk, "_balance", spy)
    results, calls = [], []
    for limit in (1, 10**6):  # four times the average, the paper's, takes more than four nodes
        monkeypatch.setattr(oktopk, "_IMBALANCE", limit)
        run, before = Run(OkTopK(0.05), here, n), here.traffic()[0]
        results.append([run.eager_step(tf.constant(g[rank])).numpy() for g in data])
        calls.append(here.traffic()[0] - before)
    np.testing.assert_array_equal(results[0], results[1])
    assert (calls[0] > calls[1]) == (share.holders > 1)
    if share.holders > 1:
        dealt, left = deals[: len(data)], deals[len(data) :]
        assert all(np.ptp(each) <= 1 for each in dealt)
        # Some shards' sums are all zeros.
        assert here.all_reduce(tf.constant(int(max(map(np.ptp, left)))), op="max") > 1


@pytest.mark.parametrize("count", [0, 1000])
def test_boundaries_of_the_longest_vector(here, count):
    """Sums of these are beyond int32."""
    share = OkTopK().share(here.topology)
    if share.holders == 1:
        return
    n = MAX_ELEMENTS // share.shards
    last = np.arange(n - count, n)
    found = oktopk._agree_on_boundaries(tf.constant(last, tf.int32), n, share, here).numpy()
    even = np.arange(1, share.holders) * -(-n // share.holders)
    expected = last[:: count // share.holders][1 : share.holders] if count else even
    np.testing.assert_array_equal(found, expected)


def test_oktopk_regions_follow_where_the_large_entries_are(here):
    """All in a tenth of the vector, of which each node sums about as many."""
    p, rank, n, k = here.topology.num_workers, here.topology.rank, 4000, 200
    run = Run(OkTopK(k / n), here, n)
    share = run.scheme.share(here.topology)
    if share.holders == 1:
        return
    large = np.arange(n) % share.length(n) < share.length(n) // 10
    run.step(tf.constant(floats(3, p, n, 1)[0, rank] * np.where(large, 1000, 1).astype(np.float32)))
    part = share.length(n) // 10 / share.holders
    cuts = [0, *run.variables["boundaries"].numpy().tolist(), share.length(n) // 10]
    assert all(0.5 * part < width < 1.6 * part for width in np.diff(cuts))


def test_regions_are_agreed_on_again(here):
    """When the large entries have moved, after `boundary_period` steps."""
    n, k = 4000, 200
    run = Run(OkTopK(k / n, boundary_period=2), here, n)
    share = run.scheme.share(here.topology)
    if share.holders == 1:
        return
    length, found = share.length(n), []
    for where in (0.0, 0.9, 0.9):
        place = np.arange(n) % length
        large = (place >= where * length) & (place < (where + 0.1) * length)
        run.step(tf.constant(np.where(large, 1e6 ** (1 + where), 1).astype(np.float32)))
        found.append(run.variables["boundaries"].numpy().tolist())
    assert found[0] == found[1] and max(found[0]) <= 0.1 * length and min(found[2]) >= 0.9 * length
