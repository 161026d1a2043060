"""Sparse schemes: nothing is lost, all workers agree, and it is the paper's algorithm.

Workers pose as nodes in several ways, whatever machine they are on: the topology is what the test says.
"""

import numpy as np
import pytest
import tensorflow as tf

from custom_ops.entries import entries
from tests import sparse_reference
from tests.multiprocess import oracle, sparse_runs
from tests.multiprocess.sparse_runs import Run, apart, floats, integers
from tests.thorough import P, thorough_if, thorough_with
from tf_sparse_strategy.communication import (
    GTopK,
    HiTopK,
    OkTopK,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.communication.sharded_topk import Dealing

MESSAGES = [HiTopK, TopKAllGather, ShardedTopK, GTopK]  # of a fixed size
SCHEMES = [*MESSAGES, OkTopK]
SIZES = [1, 2, 3, 17, 1001]
here = sparse_runs.everywhere
ALL = 0.9999  # a density at which messages hold all entries; at 1 there are none


@pytest.fixture(params=SCHEMES, ids=lambda scheme: scheme.__name__)
def kind(request):
    return request.param


@pytest.fixture(params=MESSAGES, ids=lambda scheme: scheme.__name__)
def packed(request):
    return request.param


@pytest.mark.parametrize("mode, density, sizes", [("eager", 0.3, SIZES), ("function", 0.05, SIZES[-1:])])
def test_sent_and_kept_make_the_whole(kind, here, mode, density, sizes):
    p, rank = here.topology.num_workers, here.topology.rank
    for n in sizes:
        run = Run(kind(density), here, n)
        step = run.step if mode == "function" else run.eager_step
        gradients = integers(n, p, n, steps=4)
        sent = sum(step(tf.constant(g[rank])).numpy() for g in gradients)
        np.testing.assert_array_equal(sent + run.kept(n), gradients.sum(axis=(0, 1)))


@thorough_with(4)
def test_indices_that_no_float32_holds(kind, here):
    shards = kind(0.1).share(here.topology).shards
    if shards > 2:
        return  # of which each were as long, and all of them more than machines hold
    n = shards * (2**24 + 33)
    gradient = np.zeros(n, np.float32)
    gradient[n - 2 * np.arange(1, 9)] = np.arange(8, 0, -1)
    run = Run(kind(4 * shards / n), here, n)
    sent = run.step(tf.constant(gradient)).numpy()
    assert sent.any()
    np.testing.assert_array_equal(sent + run.kept(n), here.topology.num_workers * gradient)


def test_something_is_kept_between_nodes_only(kind, here):
    """Or the test above would prove little."""
    p, n = here.topology.num_workers, 1001
    run = Run(kind(0.01), here, n)
    run.step(tf.constant(integers(0, p, n, 1)[0, here.topology.rank]))
    apart = kind is TopKAllGather or here.topology.num_nodes > 1
    assert (run.kept(n) != 0).any() == (apart and p > 1)


CODED = [{"wire_dtype": dtype, "index_coding": "delta"} for dtype in ("float16", "bfloat16")]
OTHERS = [(kind, options) for kind in MESSAGES for options in (*CODED, {"selector": "gaussian"})]
OTHERS += [(kind, {"selector": "sampled"}) for kind in MESSAGES]
OTHERS += [(HiTopK, {"selector": "gaussian", "wire_dtype": "float16"})]
OTHERS += [(ShardedTopK, {"applied": 2.5}), (ShardedTopK, {"applied": 40, **CODED[0]})]
OTHERS += [(OkTopK, {"threshold_period": 2, "boundary_period": 3}), (OkTopK, {"flat": True})]


def shown(case):
    """Whether others show it: two nodes of two how entries are chosen and packed, three workers the rest."""
    kind, options = case
    if P == 3:
        return not {"index_coding", "selector"}.isdisjoint(options)
    return P == 4 and (kind in (TopKAllGather, GTopK) or "error_feedback" in options)


@pytest.mark.parametrize("of", thorough_if(shown, OTHERS), ids=str)
def test_with_no_option_anything_is_lost(here, of):
    """Whole numbers beyond 2^8, or 2^11, are rounded on the wire, or cut; the residual has the rest."""
    kind, options = of
    p, n = here.topology.num_workers, 1001
    run = Run(kind(0.05, **options), here, n)
    gradients = integers(n, p, n, steps=4) * 127
    sent = sum(run.step(tf.constant(g[here.topology.rank])).numpy() for g in gradients)
    np.testing.assert_array_equal(sent + run.kept(n), gradients.sum(axis=(0, 1)))


@pytest.mark.parametrize("density, values", [(1.0, floats), (ALL, integers)])
def test_density_one_is_dense_bit_for_bit(kind, here, density, values):
    """The second by messages that hold all entries, which are added in another order."""
    for n in (3, 1001):
        run = Run(kind(density), here, n)
        sparse_runs.assert_as_dense(run, values(n, here.topology.num_workers, n, steps=2))
        assert not run.kept(n).any()


VARIANTS = [(kind, options) for kind in SCHEMES for options in ({}, {"error_feedback": False})]
VARIANTS += [(kind, {"wire_dtype": "float16", "index_coding": "delta"}) for kind in MESSAGES]
VARIANTS += [(ShardedTopK, {"applied": 2.5}), (ShardedTopK, {"applied": 40, "wire_dtype": "bfloat16"})]
VARIANTS += [(OkTopK, {"threshold_period": 2, "boundary_period": 3}), (OkTopK, {"flat": True})]
ESTIMATED = [(HiTopK, "gaussian"), (HiTopK, "sampled"), (ShardedTopK, "gaussian"), (GTopK, "sampled")]
VARIANTS += [(kind, {"selector": selector}) for kind, selector in ESTIMATED]


@pytest.mark.parametrize("of", thorough_if(shown, VARIANTS), ids=str)
def test_same_steps_as_the_numpy_model(here, of):
    kind, options = of
    p, rank, nodes = here.topology.num_workers, here.topology.rank, here.topology.nodes
    reference = {k: v for k, v in options.items() if k not in ("index_coding", "boundary_period", "flat")}
    nodes = tuple(range(p)) if options.get("flat") else nodes
    for n in (3, 1001):
        run = Run(kind(0.05, **options), here, n)
        model = getattr(sparse_reference, kind.__name__)(nodes, n, 0.05, **reference)
        for g in floats(n, p, n, steps=4):
            expected = model.step(g)
            got = run.step(tf.constant(g[rank])).numpy()
            exact = model.holders > 1  # on one node the ring adds in an order of its own
            np.testing.assert_allclose(got, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
        if "residual" in run.variables:
            share = run.scheme.share(here.topology)
            np.testing.assert_array_equal(
                run.variables["residual"], model.residuals[share.holder, share.shard]
            )


LONG = [(kind, {}) for kind in SCHEMES] + [(ShardedTopK, {"applied": 3, **CODED[0]}), (HiTopK, CODED[1])]
LONG += [(kind, {"selector": selector}) for kind, selector in ESTIMATED]


@pytest.mark.parametrize("of", thorough_if(shown, LONG), ids=str)
def test_fifty_steps_of_descent(here, of):
    """Least squares; weights follow the model's to the bit, and are the same on all workers."""
    kind, options = of
    p, rank, nodes, n = here.topology.num_workers, here.topology.rank, here.topology.nodes, 203
    targets = floats(1, p, n, 1)[0]
    reference = {k: v for k, v in options.items() if k != "index_coding"}
    run = Run(kind(0.05, **options), here, n)
    model = getattr(sparse_reference, kind.__name__)(nodes, n, 0.05, **reference)
    rate = 2.0**-4 if p <= 5 else 2.0**-7  # entries wait longer on more nodes, and must not overshoot
    weights, expected = sparse_runs.descend(run, targets[rank], 50, rate), np.zeros(n, np.float32)
    for _ in range(50):
        expected -= model.step(expected - targets) * np.float32(rate)
    tolerance = 0 if model.holders > 1 else 1e-4
    np.testing.assert_allclose(weights, expected, rtol=tolerance, atol=tolerance)
    oracle.assert_identical(here, weights.view(np.int32))
    if model.holders > 1:
        start, end = (np.abs(w - targets.mean(0)).max() for w in (np.zeros(n), weights))
        assert end < start


def test_a_worker_in_the_midst_of_a_tree_merges_and_passes_on(comm, partners):
    run = Run(GTopK(0.05), apart(comm.topology), 203)
    model = sparse_reference.GTopK(tuple(range(P)), 203, 0.05)
    for g in floats(2, P, 203, steps=4):
        np.testing.assert_array_equal(run.step(tf.constant(g[comm.topology.rank])), model.step(g))
    np.testing.assert_array_equal(run.variables["residual"], model.residuals[comm.topology.rank, 0])


def test_nothing_and_zeros(kind, here):
    run = Run(kind(0.1), here, 50)
    assert not run.eager_step(tf.zeros([50])).numpy().any() and not run.kept(50).any()
    empty = Run(kind(0.1), here, 0)
    assert empty.variables == {} and empty.eager_step(tf.zeros([0])).shape == (0,)


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_a_step_that_is_not_finite_leaves_no_trace(kind, here, density):
    """On one worker only, in an element of whatever block: seen by all, remembered by none."""
    p, rank, n = here.topology.num_workers, here.topology.rank, 101
    run = Run(kind(density), here, n)
    good, other = floats(0, p, n, steps=2)
    run.step(tf.constant(good[rank]))
    before = {name: v.numpy() for name, v in run.variables.items()}
    where, changed = [], set()
    for bad, at in [(bad, n - 1 - i) for bad in (np.nan, np.inf) for i in (*range(p), n - 1)]:
        poisoned = other.copy()
        poisoned[p - 1, at] = bad
        summed = run.step(tf.constant(poisoned[rank])).numpy()
        where.append((at, np.flatnonzero(~np.isfinite(summed)).tolist()))
        changed |= {k for k, v in before.items() if run.variables[k].numpy().tobytes() != v.tobytes()}
    run.step(tf.constant(good[rank]))
    left = run.kept(n)
    assert all(found == [at] for at, found in where) and not changed and np.isfinite(left).all()


def test_finite_gradients_whose_sum_is_not_leave_no_trace(kind, here):
    """What was sent of them would be lost with the step that loss scaling skips."""
    p, rank, n = here.topology.num_workers, here.topology.rank, 101
    run = Run(kind(0.5), here, n)
    run.step(tf.constant(floats(0, p, n, steps=1)[0, rank]))
    before = run.bits()
    summed = run.step(tf.fill([n], 3e38)).numpy()
    assert (p > 1) == np.isinf(summed).any()
    if p > 1:
        assert before == run.bits()


def test_dtypes(kind, here):
    """float64 travels whole: float32 messages would lose some of it."""
    n, p = 36, here.topology.num_workers  # of which sums of seven are whole in bfloat16
    holders = kind(ALL).share(here.topology).holders
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        run = Run(kind(ALL), here, n, dtype)
        result = run.eager_step(tf.cast(tf.range(n), dtype))
        assert result.dtype == dtype
        np.testing.assert_array_equal(tf.cast(result, tf.float32), p * np.arange(n))
        assert ("residual" in run.variables) == (holders > 1 and dtype != "float64")


def test_what_bfloat16_rounds_off_a_sum_is_kept(kind, here):
    p, rank, n = here.topology.num_workers, here.topology.rank, 1001
    run = Run(kind(0.05), here, n, "bfloat16")
    if "residual" in run.variables:
        gradients = integers(5, p, n, steps=4).clip(-255, 255)
        sums = [run.step(tf.cast(g[rank], tf.bfloat16)) for g in gradients]
        sent = sum(tf.cast(x, tf.float32).numpy() for x in sums)
        np.testing.assert_array_equal(sent + run.kept(n), gradients.sum(axis=(0, 1)))


def test_a_residual_beyond_float16_is_handed_out_in_parts(kind, here):
    """Not as Inf, which loss scaling would skip after the residual was emptied."""
    p, n, steps = here.topology.num_workers, 40, 60
    run = Run(kind(0.05, threshold_period=1) if kind is OkTopK else kind(0.05), here, n, "float16")
    keeps = "residual" in run.variables
    gradient, sent = np.arange(2048, 2048 + 16 * n, 16).astype(np.float16), np.zeros(n)
    for _ in range(steps):
        handed = run.step(tf.constant(gradient)).numpy()
        assert handed.dtype == np.float16 and np.isfinite(handed).all()
        sent += handed
    if keeps:
        kept = run.kept(n)
        assert np.abs(kept).max() > 65504  # or this would prove nothing
        np.testing.assert_array_equal(sent + kept, steps * p * gradient.astype(float))


@pytest.mark.parametrize("options", [{}, {"wire_dtype": "float16", "index_coding": "delta"}], ids=str)
def test_cost_predicts_the_bytes_counted(packed, here, options):
    """Also the choice between messages and sums inside the node, which the density turns."""
    for density in (0.01, 0.4, ALL, 1.0):
        for n in (1, 17, 1001):
            run = Run(packed(density, **options), here, n)
            np.testing.assert_array_equal(*sparse_runs.sent_and_predicted(run, n))


def test_nodes_sum_all_of_their_own_block(here):
    """What is applied of it leaves nothing in the residual of the node that summed it."""
    p, rank, n = here.topology.num_workers, here.topology.rank, 1001
    run = Run(ShardedTopK(0.05), here, n)
    share = run.scheme.share(here.topology)
    if share.holders == 1:
        return
    length = share.length(n)
    dealing = Dealing(length, share.holders)
    for g in floats(7, p, n, steps=4):
        padded = tf.pad(run.step(tf.constant(g[rank])), [[0, length * share.shards - n]])
        mine = padded[share.shard * length :][:length]
        applied = dealing.deal(dealing.padded(mine))[share.holder].numpy() != 0
        left = dealing.deal(dealing.padded(run.variables["residual"]))[share.holder].numpy()
        assert applied.any() and not left[applied].any() and left[~applied].any()


@pytest.mark.parametrize("kind, between", [(HiTopK, 1), (TopKAllGather, 1), (ShardedTopK, 2)])
def test_operations_between_nodes(here, kind, between):
    """One message of each stream in each; and two within the nodes."""
    run = Run(kind(0.05), here, 1001)
    share, before = run.scheme.share(here.topology), here.traffic()[0]
    run.eager_step(tf.zeros([1001]))
    if share.holders > 1:
        assert here.traffic()[0] - before == between + (2 if share.shards > 1 else 0)


@thorough_with(4)
def test_with_a_gpu_in_sight_steps_are_the_same(kind, here, monkeypatch):
    """TensorFlow's operations then take the place of ours."""
    p, rank, n = here.topology.num_workers, here.topology.rank, 1001
    options = {} if kind is OkTopK else {"wire_dtype": "float16", "index_coding": "delta"}
    ours, theirs = (Run(kind(0.05, **options), here, n) for _ in range(2))
    gradients = [tf.constant(g[rank]) for g in floats(3, p, n, steps=3)]
    expected = [ours.step(gradient).numpy() for gradient in gradients]
    monkeypatch.setattr(entries, "on_gpu", lambda: True)
    for gradient, sums in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(theirs.step(gradient), sums)
    np.testing.assert_array_equal(theirs.kept(n), ours.kept(n))
