"""Schemes change when they should, and what one has not sent the next one sends."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import sparse_runs
from tests.thorough import MOSTLY_KERAS3
from tf_sparse_strategy import communication
from tf_sparse_strategy.communication import (
    Auto,
    Dense,
    Float16,
    Guarded,
    HiTopK,
    LinkModel,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
    Torus2D,
)
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.topology import Topology

N = 101


def run_of(phases, here, **options):
    return sparse_runs.Run(Piecewise(phases, unit="step", **options), here, N)


def gradients(p, steps):
    return sparse_runs.integers(3, p, N, steps)


def test_epochs_reach_schemes_within_others(here):
    inner = Piecewise([(0, HiTopK(0.05)), (1, Dense())])
    reducer = GradientReducer(Piecewise([(0, inner), (9, Torus2D())]), here, bucket_bytes=1 << 20)
    variables, rests = [tf.Variable(tf.zeros([N, 1]))], []
    for epoch in range(2):
        reducer.memory.begin_epoch(epoch, variables)
        sparse_runs.step(reducer, variables, here.topology, epoch)
        states = [state for _, state in reducer.memory.buckets]  # none, where there is nothing to add
        rests.append(any("residual" in s and bool(tf.reduce_any(s["residual"] != 0)) for s in states))
    assert rests == [here.topology.num_workers > 1, False]


def test_density_one_is_dense_bit_for_bit(here):
    """In its phase, before it and behind."""
    run = run_of([(0, Dense()), (1, HiTopK(1.0)), (2, ShardedTopK(1.0)), (3, Dense())], here)
    sparse_runs.assert_as_dense(run, sparse_runs.floats(2, here.topology.num_workers, N, 4))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_rank_0_tells_each_change(here, capfd, mode):
    p, rank = here.topology.num_workers, here.topology.rank
    run = run_of([(0, HiTopK(0.05)), (2, Dense()), (3, Float16())], here)
    make_step = run.eager_step if mode == "eager" else run.step
    for g in gradients(p, 5):
        make_step(tf.constant(g[rank]))
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Piecewise: ")]
    if rank:
        assert told == []
        return
    first, second = told
    assert first.startswith("Piecewise: 101 elements are summed by Dense() now, before by HiTopK(density")
    assert second == "Piecewise: 101 elements are summed by Float16(scheme=Dense()) now, before by Dense()"


def test_a_scheme_within_another_begins_with_what_was_kept(here):
    """Its own exact phase is its first, which is no change to it."""
    p, rank = here.topology.num_workers, here.topology.rank
    inner = Piecewise([(0, Dense()), (9, HiTopK(0.05))], unit="step")
    run, data = run_of([(0, HiTopK(0.05)), (3, inner)], here), gradients(p, 5)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data]
    assert not run.kept(N).any()
    np.testing.assert_array_equal(sum(sums), data.sum(axis=(0, 1)))


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("exact", [Dense(), Torus2D()], ids=repr)
@pytest.mark.parametrize("sparse", [HiTopK(0.05), ShardedTopK(0.05)], ids=repr)
def test_an_exact_phase_begins_with_what_was_kept(here, sparse, exact, mode):
    p, rank = here.topology.num_workers, here.topology.rank
    if exact == Torus2D() and not here.topology.is_uniform:  # which it refuses
        return
    run = run_of([(0, sparse), (3, exact)], here)
    step = run.step if mode == "function" else run.eager_step
    data = gradients(p, 5)
    sums = [step(tf.constant(g[rank])).numpy() for g in data[:3]]
    assert run.kept(N).any() == (p > 1)
    sums.append(step(tf.constant(data[3, rank])).numpy())
    assert not run.kept(N).any()
    np.testing.assert_array_equal(sum(sums), data[:4].sum(axis=(0, 1)))
    np.testing.assert_array_equal(step(tf.constant(data[4, rank])), data[4].sum(axis=0))


@pytest.mark.usefixtures("partners")
def test_a_phase_that_rounds_begins_without(here):
    """Of these float16 would have nothing left."""
    run, tiny = run_of([(0, HiTopK(0.05)), (3, Float16())], here), tf.fill([N], 2.0**-40)
    sums = [run.step(tiny).numpy() for _ in range(4)]
    assert not run.kept(N).any()
    np.testing.assert_array_equal(sum(sums), 4 * here.topology.num_workers * tiny)
    assert not run.step(tiny).numpy().any()


def test_what_was_kept_may_be_more_than_float16_holds(here):
    """Then it takes as many steps of the exact phase as it needs, and none of them is infinite."""
    p, steps, each = here.topology.num_workers, 70, 2048.0
    scheme = Piecewise([(0, HiTopK(0.02)), (steps, Dense())], unit="step")
    run = sparse_runs.Run(scheme, here, N, "float16")
    gradient, sent = tf.fill([N], tf.constant(each, tf.float16)), np.zeros(N)
    for _ in range(steps + 1):
        handed = run.step(gradient).numpy()
        assert np.isfinite(handed).all()
        sent += handed
    more = 0
    while run.kept(N).any():
        sent += run.step(gradient).numpy()
        more += 1
    assert (more > 0) == (p > 1)
    np.testing.assert_array_equal(sent, np.full(N, (steps + 1 + more) * p * each))


def test_or_keeps_it_for_the_next_sparse_phase(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run = run_of([(0, HiTopK(0.05)), (2, Dense()), (4, HiTopK(0.9999))], here, flush=False)
    data = gradients(p, 5)
    sums = [run.step(tf.constant(g[rank])).numpy() for g in data[:2]]
    before = run.kept(N)
    for g in data[2:4]:
        np.testing.assert_array_equal(run.step(tf.constant(g[rank])), g.sum(axis=0))
    np.testing.assert_array_equal(run.kept(N), before)
    last = run.step(tf.constant(data[4, rank])).numpy()
    np.testing.assert_array_equal(sum(sums) + last, data[[0, 1, 4]].sum(axis=(0, 1)))


def test_densities_share_the_residual(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run = run_of([(0, HiTopK(0.05)), (1, ShardedTopK(0.3)), (3, HiTopK(0.1))], here)
    data = gradients(p, 5)
    sent = sum(run.step(tf.constant(g[rank])).numpy() for g in data)
    np.testing.assert_array_equal(sent + run.kept(N), data.sum(axis=(0, 1)))


def test_a_bad_step_does_not_take_the_residual_with_it(here):
    """The step that was to bring it is skipped; the next one brings it."""
    p, rank = here.topology.num_workers, here.topology.rank
    run = run_of([(0, HiTopK(0.05)), (1, Dense())], here)
    good, more = gradients(p, 2)
    first = run.step(tf.constant(good[rank])).numpy()
    assert not np.isfinite(run.step(tf.fill([N], np.nan)).numpy()).any()
    second = run.step(tf.constant(more[rank])).numpy()
    np.testing.assert_array_equal(first + second, (good + more).sum(axis=0))


def test_cost_is_the_dearest_phase(here):
    model = communication.LinkModel(1e-5, 1e-9, 1e-4, 1e-8)
    dear, cheap = Dense().cost(N, here.topology, model), HiTopK(0.05).cost(N, here.topology, model)
    got = Piecewise([(0, HiTopK(0.05)), (2, Dense())]).cost(N, here.topology, model)
    assert got == max(dear, cheap, key=lambda cost: cost.seconds)


@MOSTLY_KERAS3
@pytest.mark.parametrize("flush", [True, False])
def test_epochs_of_fit(keras, topology, flush):
    phases = [(0, TopKAllGather(0.1)), (1, Dense())]
    strategy, _, _ = sparse_runs.fit(keras, Piecewise(phases, flush=flush), epochs=1)
    sparse = [r.any() for r in sparse_runs.kept(strategy.extended.gradients) if r.ndim]
    assert any(sparse) == (topology.num_workers > 1)
    strategy, _, _ = sparse_runs.fit(keras, Piecewise(phases, flush=flush), epochs=2)
    after = [r.any() for r in sparse_runs.kept(strategy.extended.gradients) if r.ndim]
    assert any(after) == (topology.num_workers > 1 and not flush)


def test_the_count_of_steps_survives_other_buckets(comm, here, topology):
    variables = [tf.Variable(tf.zeros(shape)) for shape in sparse_runs.SHAPES]
    scheme = Piecewise([(0, HiTopK(0.05)), (3, Dense())], unit="step", flush=False)
    old = GradientReducer(scheme, here, bucket_bytes=64)
    for seed in range(3):
        sparse_runs.step(old, variables, topology, seed)
    blob = sparse_runs.moved(comm, old.memory.serialize())
    new = GradientReducer(scheme, here, bucket_bytes=1 << 20)
    new.memory.deserialize(blob)
    exact = GradientReducer(Dense(), here, bucket_bytes=64)
    np.testing.assert_array_equal(
        sparse_runs.step(new, variables, topology, 3), sparse_runs.step(exact, variables, topology, 3)
    )


@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_a_resumed_run_goes_by_its_own_epoch(comm, here, topology, bucket_bytes):
    """What was saved in epoch 1 resumes in epoch 2: Keras says so before the first step."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in sparse_runs.SHAPES]
    scheme = Piecewise([(0, HiTopK(0.05)), (2, Dense())], flush=False)
    old = GradientReducer(scheme, here, bucket_bytes=64)
    old.memory.begin_epoch(1, variables)
    sparse_runs.step(old, variables, topology, 0)
    blob = sparse_runs.moved(comm, old.memory.serialize())
    new = GradientReducer(scheme, here, bucket_bytes=bucket_bytes)
    new.memory.deserialize(blob)
    new.memory.begin_epoch(2, variables)
    exact = GradientReducer(Dense(), here, bucket_bytes=64)
    for seed in (1, 2):
        np.testing.assert_array_equal(
            sparse_runs.step(new, variables, topology, seed),
            sparse_runs.step(exact, variables, topology, seed),
        )


def test_thresholds_start_afresh_with_other_buckets(comm, here, topology):
    """A threshold of 0 beside an age that does not renew it would send everything."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in sparse_runs.SHAPES]
    old = GradientReducer(OkTopK(0.05), here, bucket_bytes=64)
    for seed in range(3):
        sparse_runs.step(old, variables, topology, seed)
    blob = sparse_runs.moved(comm, old.memory.serialize())
    new = GradientReducer(OkTopK(0.05), here, bucket_bytes=1 << 20)
    new.memory.deserialize(blob)
    sums = sparse_runs.step(new, variables, topology, 3)
    of_matrices = [*sums[: 3 * 4], *sums[-5 * 5 :]]
    assert np.count_nonzero(of_matrices) < 10 or topology.num_workers == 1


def test_oktopk_beside_others(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run = run_of([(0, HiTopK(0.3)), (2, OkTopK(0.05)), (4, Dense())], here)
    data = gradients(p, 5)
    sent = sum(run.step(tf.constant(g[rank])).numpy() for g in data)
    np.testing.assert_array_equal(sent + run.kept(N), data.sum(axis=(0, 1)))
    assert not run.kept(N).any()


AT_ONCE = LinkModel(0.0, 0.0, 0.0, 1e-3, selection=1e-12)  # known, or it would be measured
SWITCHING = [
    Piecewise([(0, HiTopK(0.05)), (20, TopKAllGather(0.05)), (40, Dense())], unit="step"),
    Guarded(OkTopK(0.05), limit=1e-9, every=7, action="density"),
    Guarded(HiTopK(0.05), limit=1e-9, every=7, action="dense"),
    Auto(0.05, links=AT_ONCE),
]


@pytest.mark.parametrize("scheme", SWITCHING, ids=repr)
def test_fifty_steps_of_descent(here, scheme):
    run = sparse_runs.Run(scheme.prepare(here), here, N)
    sparse_runs.assert_all_descend_alike(run, N, rate=2.0**-7)


@pytest.mark.parametrize("starts", [[], [1], [0, 0], [0, 5, 3], [0, 2.0]])
def test_starts_are_checked(starts):
    with pytest.raises(ValueError, match="the first phase must start at 0"):
        Piecewise([(start, Dense()) for start in starts])


def test_units_and_schemes_are_checked():
    with pytest.raises(ValueError, match=r"unit='batch'.*'epoch', 'step'"):
        Piecewise([(0, Dense())], unit="batch")
    exact = Piecewise([(0, Dense()), (1, Torus2D())])
    with pytest.raises(ValueError, match="has exact phases alone"):
        Piecewise([(0, HiTopK()), (1, exact)])
    assert Piecewise([(0, Dense()), (1, exact)])  # all states are empty there
    for unpaired in (0, (0, HiTopK()), [(0, HiTopK(), Dense())]):
        with pytest.raises(TypeError, match=r"phases=.*must be a list of pairs"):
            Piecewise(unpaired)
    with pytest.raises(TypeError, match="'torus2d' is not a Communication"):
        Piecewise([(0, Dense()), (1, "torus2d")])
    with pytest.raises(TypeError, match="'hitopk' is not a Communication"):
        Piecewise([(0, "hitopk")])
    with pytest.raises(ValueError, match="chooses by itself"):
        Piecewise([(0, HiTopK()), (1, Auto())])
    forgetful = Piecewise([(0, HiTopK()), (1, HiTopK(error_feedback=False))])
    with pytest.raises(ValueError, match="without error feedback would drop"):
        forgetful.validate(Topology((0, 0, 1, 1), 0))
    uneven = Piecewise([(0, HiTopK()), (1, Torus2D())])
    with pytest.raises(ValueError, match="same number of workers"):
        uneven.validate(Topology((0, 0, 1), 0))
