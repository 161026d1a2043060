"""Sparse schemes under LARS: what moves weights far goes first, and nothing is lost."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lars_pto
from lars_pto import legacy_keras
from tests.multiprocess import oracle
from tests.multiprocess.sparse_runs import fit, integers, waiting
from tf_sparse_strategy.communication import (
    Dense,
    GTopK,
    Guarded,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.gradients import GradientReducer

SIZES, STEPS = [40, 7, 0, 25], 4
FAR = 2048.0  # so far moves the last variable by a gradient of 1, others by 1; gradients are below 1000
KINDS = [HiTopK, TopKAllGather, ShardedTopK, GTopK]
SCHEMES = [kind(0.1) for kind in KINDS] + [
    HiTopK(0.1, error_feedback=False),
    ShardedTopK(0.1, applied=2, wire_dtype="float16", index_coding="delta"),
    HiTopK(0.1, selector="sampled"),
    Piecewise([(0, HiTopK(0.1)), (2, ShardedTopK(0.1))], unit="step"),
    Guarded(ShardedTopK(0.1), limit=1e-9, every=2, action="density"),
]


@pytest.fixture(autouse=True)
def nodes(topology):
    if topology.num_nodes == 1:
        pytest.skip("on one node nothing is selected")


@pytest.fixture
def variables():
    return [tf.Variable(tf.zeros([n])) for n in SIZES]


def units_of(variables, squares):
    """FAR for the last variable, in whichever order they come."""
    assert squares.shape == [len(variables)]
    return tf.stack([FAR if v.shape == [SIZES[-1]] else 1.0 for v in variables])


def alike(variables, squares):
    return tf.ones_like(squares)


def gradients(topology):
    """[STEPS, P, N]"""
    return integers(0, topology.num_workers, sum(SIZES), STEPS)


class Run:
    """Steps of one scheme with one bucket, whose elements are the variables' from the last to the first."""

    def __init__(self, scheme, comm, variables, *units):
        self.comm, self.variables, self.units = comm, variables, units
        self.reducer = GradientReducer(scheme, comm, 1 << 20)
        self.step = tf.function(self._step)

    def _step(self, flat):
        flat = tf.cast(flat, self.variables[0].dtype)
        pairs = list(zip(tf.split(flat, SIZES), self.variables, strict=True))
        return tf.concat(self.reducer.reduce(pairs, *self.units), axis=0)

    def sums(self, found, topology):
        return np.stack([self.step(g[topology.rank]).numpy() for g in found])

    def waiting(self):
        """What all workers' residuals add up to, [N]."""
        [(_, state)] = self.reducer.memory.buckets
        return reversed_parts(waiting(self.reducer.scheme, state, sum(SIZES), self.comm), SIZES[::-1])


def reversed_parts(flat, sizes):
    """`flat`, of parts of these sizes, with the last part first: buckets hold the last variable first."""
    return np.concatenate(np.split(flat, np.cumsum(sizes)[:-1])[::-1])


def far_and_near(summed, scheme, topology):
    """Of a sum's first shard, which has all of the last variable; others have to choose from the rest."""
    shard = reversed_parts(summed, SIZES)[: scheme.share(topology).length(sum(SIZES))]
    return shard[: SIZES[-1]], shard[SIZES[-1] :]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_what_moves_far_goes_first_and_the_rest_waits(comm, topology, variables, scheme):
    run, found = Run(scheme, comm, variables, units_of), gradients(topology)
    sums = run.sums(found, topology)
    far, near = far_and_near(sums[0], scheme, topology)
    assert far.any() and not near.any()
    by_size = Run(scheme, comm, variables).sums(found[:1], topology)
    assert far_and_near(by_size[0], scheme, topology)[1].any(), "chosen by size, others would come first"
    if getattr(scheme, "error_feedback", True):
        np.testing.assert_array_equal(sums.sum(0) + run.waiting(), found.sum((0, 1)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_where_all_weigh_alike_no_bit_changes(comm, topology, variables, scheme):
    found = np.random.default_rng(1).standard_t(2, gradients(topology).shape).astype(np.float32)
    one, other = Run(scheme, comm, variables, alike), Run(scheme, comm, variables)
    np.testing.assert_array_equal(one.sums(found, topology), other.sums(found, topology))
    np.testing.assert_array_equal(one.waiting(), other.waiting())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_short_gradients(comm, topology, dtype):
    variables = [tf.Variable(tf.zeros([n], dtype)) for n in SIZES]
    found = np.clip(gradients(topology)[:1], -99, 99)
    sums = Run(HiTopK(0.1), comm, variables, units_of).sums(found, topology)
    far, near = far_and_near(sums[0], HiTopK(0.1), topology)
    assert far.any() and not near.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_and_changes_no_residual(comm, topology, variables, kind, bad):
    """Of the last worker alone, and in a variable that weighs little."""
    run, found = Run(kind(0.1), comm, variables, units_of), gradients(topology)
    run.sums(found[:1], topology)
    before, spoilt = run.waiting(), found[1].copy()
    spoilt[-1, 3] = bad
    assert not np.isfinite(run.sums([spoilt], topology)).all()
    np.testing.assert_array_equal(run.waiting(), before)


def test_exact_sums_do_not_ask(comm, topology, variables):
    """And an exact phase takes along what waited."""

    def refuse(variables, squares):
        raise AssertionError("nothing is chosen here")

    found = gradients(topology)
    np.testing.assert_array_equal(
        Run(Dense(), comm, variables, refuse).sums(found, topology), found.sum(1)
    )
    phases = Piecewise([(0, ShardedTopK(0.1)), (2, Dense())], unit="step")
    sums = Run(phases, comm, variables, units_of).sums(found, topology)
    np.testing.assert_array_equal(sums.sum(0), found.sum((0, 1)))
    np.testing.assert_array_equal(sums[3], found[3].sum(0))


def test_oktopk_chooses_by_gradients(comm, topology, variables):
    found = gradients(topology)
    one, other = Run(OkTopK(0.1), comm, variables, units_of), Run(OkTopK(0.1), comm, variables)
    np.testing.assert_array_equal(one.sums(found, topology), other.sums(found, topology))


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("module, keras", [(lars_pto, keras3), (legacy_keras, tf_keras)], ids=["3", "tf"])
def test_lars_in_fit(comm, monkeypatch, module, keras, run_eagerly):
    def trained():
        model = fit(keras, HiTopK(0.1), 2, lambda: module.LARS(1.0), run_eagerly=run_eagerly)[1]
        return model.get_weights()

    chosen = trained()
    for weight in chosen:
        oracle.assert_identical(comm, weight)
    monkeypatch.setattr(module.LARS, "update_units", None)
    assert any((a != b).any() for a, b in zip(chosen, trained(), strict=True)), "LARS has no say"


@pytest.mark.parametrize("module, keras", [(lars_pto, keras3), (legacy_keras, tf_keras)], ids=["3", "tf"])
def test_loss_scaling_changes_nothing(module, keras):
    scaled = keras.optimizers if keras is keras3 else keras.mixed_precision
    plain = fit(keras, HiTopK(0.1), 2, lambda: module.LARS(1.0))[1].get_weights()

    def optimizer():
        return scaled.LossScaleOptimizer(module.LARS(1.0), initial_scale=8.0)

    for one, other in zip(plain, fit(keras, HiTopK(0.1), 2, optimizer)[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("units", [(), (units_of,)], ids=["size", "moves"])
def test_the_guard_compares_what_is_chosen(comm, topology, variables, units):
    """Of workers whose gradients are alike nothing is lost by choosing before adding up."""
    run = Run(Guarded(TopKAllGather(0.1), limit=1e9, every=1), comm, variables, *units)
    found = np.random.default_rng(0).standard_normal([1, sum(SIZES)]).astype(np.float32)
    run.sums(np.repeat(found[:, np.newaxis], topology.num_workers, axis=1), topology)
    [(_, state)] = run.reducer.memory.buckets
    assert float(state["eps"]) < 1e-6
