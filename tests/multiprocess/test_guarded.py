"""Guarded: eps is what the paper defines, and what is done beyond the limit is done by all."""

import numpy as np
import pytest
import tensorflow as tf

from tests import sparse_reference
from tests.mstopk_reference import top_k
from tests.multiprocess import oracle, sparse_runs
from tf_sparse_strategy.communication import (
    Auto,
    Dense,
    Guarded,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
)
from tf_sparse_strategy.communication.guarded import BEYOND, EPS, LEVEL

N, DENSITY = 203, 0.05


def top(x):
    result = np.zeros_like(x)
    chosen = top_k(x, sparse_reference.count(DENSITY, len(x)))
    result[chosen] = x[chosen]
    return result


@pytest.mark.parametrize("kind", [HiTopK, ShardedTopK, OkTopK])
def test_eps_is_the_papers(here, kind):
    """Every second step, from the NumPy model's residuals before that step and its result."""
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(Guarded(kind(DENSITY), limit=1e9, every=2), here, N)
    model = getattr(sparse_reference, kind.__name__)(here.topology.nodes, N, DENSITY)
    for number, g in enumerate(sparse_runs.floats(1, p, N, 4)):
        kept = model.residuals.reshape(model.holders, -1)[:, :N].sum(axis=0)
        expected = model.step(g)
        np.testing.assert_allclose(run.step(tf.constant(g[rank])), expected, rtol=1e-5, atol=1e-5)
        if number % 2 and p > 1:
            summed = g.sum(axis=0)
            eps = np.linalg.norm(top(summed + kept) - top(expected)) / np.linalg.norm(summed)
            np.testing.assert_allclose(run.variables[EPS], eps, rtol=1e-4)
            assert eps > 0.01  # or this would prove nothing


def test_beyond_the_limit_a_step_is_dense(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(Guarded(HiTopK(DENSITY), limit=1e-6, every=3, action="dense"), here, N)
    data = sparse_runs.integers(1, p, N, 4)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data[:2]]
    assert run.kept(N).any() == (p > 1)
    sums.append(run.step(tf.constant(data[2, rank])).numpy())
    assert not run.kept(N).any()
    np.testing.assert_array_equal(sum(sums), data[:3].sum(axis=(0, 1)))
    sums.append(run.step(tf.constant(data[3, rank])).numpy())
    np.testing.assert_array_equal(sum(sums) + run.kept(N), data.sum(axis=(0, 1)))


def test_thresholds_are_found_anew_when_the_residual_is_empty(here):
    """Those of large residuals would let next to nothing pass."""
    p, rank = here.topology.num_workers, here.topology.rank
    scheme = OkTopK(DENSITY, threshold_period=5)
    run = sparse_runs.Run(Guarded(scheme, limit=1e-6, every=8, action="dense"), here, N)
    data = np.random.default_rng(4).uniform(1, 2, (9, p, N)).astype(np.float32)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data]
    if p > 1:
        assert np.count_nonzero(sums[7]) > N // 2 and np.count_nonzero(sums[8]) >= N * DENSITY // 2


def test_an_exact_sum_that_overflows_is_not_taken(here, capfd):
    """Each worker keeps a number, of which the sum is Inf: kept, they would be NaN for ever."""
    p, rank = here.topology.num_workers, here.topology.rank
    if p != 2:  # on a node of its own each
        return
    run = sparse_runs.Run(Guarded(HiTopK(1 / N), limit=1e-6, every=2, action="dense"), here, N)
    gradient = np.zeros(N, np.float32)
    gradient[[rank, rank + 10, -1]] = 3e38, 2.5e38, 2e38
    for sent in (gradient, np.ones(N, np.float32)):
        assert np.isfinite(run.step(tf.constant(sent))).all()
    assert run.variables[EPS].numpy() == np.inf
    told = "nothing is done about it, for the exact sum is not finite"
    assert capfd.readouterr().err.count(told) == (rank == 0)
    assert np.isfinite(run.variables["residual"]).all() and run.variables["residual"].numpy()[-1] > 1e38


def test_beyond_the_limit_a_step_is_dense_without_error_feedback_too(here):
    p, rank = here.topology.num_workers, here.topology.rank
    scheme = Guarded(HiTopK(DENSITY, error_feedback=False), limit=1e-6, every=2, action="dense")
    run, data = sparse_runs.Run(scheme, here, N), sparse_runs.integers(1, p, N, 2)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data]
    np.testing.assert_array_equal(sums[1], data[1].sum(axis=0))
    assert (sums[0] == data[0].sum(axis=0)).all() == (p == 1)


def test_beyond_the_limit_density_is_raised(here):
    """Twice at most; within the limit never. Nothing is lost on the way."""
    p, rank = here.topology.num_workers, here.topology.rank
    data = sparse_runs.integers(2, p, N, 5)
    for limit, levels in ((1e-6, [1, 2, 2, 2, 2]), (1e9, [0] * 5)):
        run = sparse_runs.Run(Guarded(HiTopK(DENSITY), limit, every=1, action="density"), here, N)
        sums, found, applied = [], [], []
        for g in data:
            sums.append(run.step(tf.constant(g[rank])).numpy())
            found.append(int(run.variables[LEVEL]))
            applied.append(np.count_nonzero(sums[-1]))
        np.testing.assert_array_equal(sum(sums) + run.kept(N), data.sum(axis=(0, 1)))
        if p > 1:
            assert found == levels
            assert (applied[2] > min(4 * applied[0], 0.9 * N)) == (levels[1] > 0)


def test_density_is_raised_to_all(here):
    """From 0.3 to 1, and no further: then nothing is kept, and each step is that of `Dense`."""
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(Guarded(HiTopK(0.3), 1e-6, every=1, action="density"), here, N)
    data = sparse_runs.integers(2, p, N, 4)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data]
    np.testing.assert_array_equal(sum(sums[:2]), data[:2].sum(axis=(0, 1)))
    np.testing.assert_array_equal(sums[2:], data[2:].sum(axis=1))
    assert not run.kept(N).any() and (sums[0] == data[0].sum(axis=0)).all() == (p == 1)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("feedback", [True, False])
def test_cost_predicts_the_bytes_counted(here, every, feedback):
    """Of both steps; a check sums residuals, too, where there are some."""
    scheme = Guarded(HiTopK(DENSITY, error_feedback=feedback), limit=1e9, every=every)
    run = sparse_runs.Run(scheme, here, N)
    np.testing.assert_allclose(*sparse_runs.sent_and_predicted(run, N, steps=2), atol=8)


TOLD = {
    "warn": ["nothing is done about it"] * 3,
    "density": [f"their density {goes}" for goes in ("is raised to 0.04", "is raised to 0.16", "stays 0.16")],
    "dense": ["this step is summed exactly"] * 3,
}


@pytest.mark.parametrize("action", TOLD)
def test_beyond_the_limit_rank_0_tells(here, capfd, action):
    """What is found and what is done about it; within the limit nobody says anything."""
    p, rank = here.topology.num_workers, here.topology.rank
    data = sparse_runs.floats(1, p, N, 3)
    for limit in (1e9, 1e-6):
        capfd.readouterr()
        run = sparse_runs.Run(Guarded(HiTopK(0.01), limit, every=1, action=action), here, N)
        for g in data:
            run.step(tf.constant(g[rank]))
        told = [line for line in capfd.readouterr().err.splitlines() if "WARNING: Guarded" in line]
        if p == 1:
            assert not told
            continue
        assert int(run.variables[BEYOND]) == (0 if limit > 1 else 3)
        expected = TOLD[action] if limit < 1 and rank == 0 else []
        assert [line.rpartition("; ")[2] for line in told] == expected
        assert all(f"its limit {limit:g} for {N} elements" in line for line in told)


@pytest.mark.parametrize("action", TOLD)
def test_density_one_is_dense_bit_for_bit(here, action):
    run = sparse_runs.Run(Guarded(HiTopK(1.0), 1e-6, every=1, action=action), here, N)
    sparse_runs.assert_as_dense(run, sparse_runs.floats(2, here.topology.num_workers, N, 2))


@pytest.mark.parametrize("action", TOLD)
@pytest.mark.parametrize("n", [0, 1, 50])
def test_nothing_and_zeros(here, action, n):
    """Fewer elements than workers, too; of zeros nothing is lost."""
    run = sparse_runs.Run(Guarded(HiTopK(DENSITY), 1e-6, every=1, action=action), here, n)
    for _ in range(2):
        assert not run.step(tf.zeros([n])).numpy().any() and not run.kept(n).any()
    assert not run.variables[BEYOND].numpy()


def test_a_step_that_is_not_finite_leaves_no_trace(here):
    run = sparse_runs.Run(Guarded(HiTopK(DENSITY), 1e-6, every=1, action="dense"), here, N)
    run.step(tf.range(N, dtype=tf.float32))
    before = run.bits()
    assert not np.isfinite(run.step(tf.fill([N], np.nan)).numpy()).all()
    if here.topology.num_workers > 1:
        assert before == run.bits()


def test_fit_with_the_guard(keras, comm, topology):
    strategy, model, _ = sparse_runs.fit(keras, Guarded(HiTopK(0.1), 1e-9, every=2, action="dense"))
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)
    found = [int(state[BEYOND]) for _, state in strategy.extended.gradients.memory.buckets if BEYOND in state]
    assert (sum(found) > 0) == (topology.num_nodes > 1)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"scheme": scheme} for scheme in (Dense(), Auto(), Piecewise([(0, HiTopK())]))),
        *({"limit": 0}, {"every": 0}, {"every": 2.0}, {"action": "stop"}),
    ],
    ids=str,
)
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Guarded(**{"scheme": HiTopK(), "limit": 1.0, **wrong})


@pytest.mark.parametrize("feedback", [True, False])
def test_a_dense_step_beyond_float16(here, feedback):
    """What it cannot hand out waits; without feedback it is cut."""
    p, steps = here.topology.num_workers, 60
    scheme = HiTopK(DENSITY, error_feedback=feedback)
    guarded = Guarded(scheme, 1e-6, every=steps if feedback else 1, action="dense")
    run = sparse_runs.Run(guarded, here, 40, "float16")
    gradient, sent = np.arange(2048, 2688, 16).astype(np.float16), np.zeros(40)
    for _ in range(steps):
        handed = run.step(tf.constant(gradient if feedback else 20 * gradient)).numpy()
        assert np.isfinite(handed).all()
        sent += handed
    if feedback:
        np.testing.assert_array_equal(sent + run.kept(40), steps * p * gradient.astype(float))
