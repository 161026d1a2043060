"""DGC is the paper's, keeps all that it has not sent, and refuses what would apply momentum twice."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from tests import sparse_reference
from tests.multiprocess import oracle, sparse_runs
from tests.thorough import thorough_with
from tf_sparse_strategy.communication import DGC, Dense, Guarded, HiTopK, Piecewise
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.topology import Topology

N, DENSITY = 203, 0.05


def without_ties(p, steps):
    return sparse_runs.integers(1, p, N, steps) + np.arange(N, dtype=np.float32) / 256


@pytest.mark.usefixtures("partners")
@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": True}, {"momentum": 0.5, "clip_norm": 5.0}, {"wire_dtype": "float16"}],
    ids=str,
)
def test_same_steps_as_the_numpy_model(here, options):
    """Whole numbers and momentum 0.5 are exact; else sums that are rounded elsewhere differ slightly."""
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(DGC(DENSITY, **options), here, N)
    model = sparse_reference.DGC(here.topology.nodes, N, DENSITY, **options)
    for g in without_ties(p, 5):
        np.testing.assert_allclose(run.step(tf.constant(g[rank])), model.step(g), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("partners")
def test_norms_beyond_float16_clip_as_others(here):
    """A norm that is Inf would clip to nothing."""
    runs = {of: sparse_runs.Run(DGC(DENSITY, clip_norm=5.0), here, N, of) for of in ("float16", "float32")}
    gradient = tf.range(100.0, 100.0 + N)
    for _ in range(2):
        half, whole = (run.step(tf.cast(gradient, of)) for of, run in runs.items())
        np.testing.assert_allclose(tf.cast(half, tf.float32), whole, rtol=2e-3)
        assert whole.numpy().any()


@pytest.mark.usefixtures("partners")
def test_without_momentum_it_is_hitopk(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run, other = (sparse_runs.Run(s, here, N) for s in (DGC(DENSITY, momentum=0.0), HiTopK(DENSITY)))
    data, sent = sparse_runs.integers(1, p, N, 4), 0
    for g in data:
        summed = run.step(tf.constant(g[rank])).numpy()
        np.testing.assert_array_equal(summed, other.step(tf.constant(g[rank])))
        sent += summed
    np.testing.assert_array_equal(sent + run.kept(N), data.sum(axis=(0, 1)))


@pytest.mark.usefixtures("partners")
def test_density_one_is_dense(here):
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(DGC(1.0, momentum=0.0), here, N)
    for g in sparse_runs.integers(2, p, N, 3):
        np.testing.assert_array_equal(run.step(tf.constant(g[rank])), g.sum(axis=0))
        assert not run.kept(N).any()


@pytest.mark.usefixtures("partners")
@pytest.mark.parametrize("options", [{}, {"wire_dtype": "float16", "index_coding": "delta"}], ids=str)
def test_cost_predicts_the_bytes_counted(here, options):
    for density in (DENSITY, 1.0):
        run = sparse_runs.Run(DGC(density, **options), here, N)
        np.testing.assert_array_equal(*sparse_runs.sent_and_predicted(run, N))


@pytest.mark.usefixtures("partners")
def test_fifty_steps_of_descent(here):
    sparse_runs.assert_all_descend_alike(sparse_runs.Run(DGC(DENSITY), here, N), N, rate=2.0**-10)


@pytest.mark.usefixtures("partners")
def test_momentum_is_gathered_while_waiting_and_cleared_when_sent(here):
    """One entry is always the largest; another waits, and its second half comes with momentum."""
    p, scheme = here.topology.num_workers, DGC(1e-9, momentum=0.5)
    n = 2 * scheme.share(here.topology).shards
    run, gradient = sparse_runs.Run(scheme, here, n), np.zeros(n, np.float32)
    gradient[0], gradient[1] = 8, 5
    sums = [run.step(tf.constant(gradient)).numpy()[:2] / p for _ in range(2)]
    # Step 1 sends 8. Step 2: 8 again (its velocity was cleared) against 5 + (2.5 + 5) = 12.5.
    np.testing.assert_array_equal(sums, [[8, 0], [0, 12.5]])


def test_warm_up_keeps_the_velocity(here):
    if here.topology.num_workers == 1:
        return
    p, rank = here.topology.num_workers, here.topology.rank
    scheme = Piecewise([(0, DGC(0.2)), (2, DGC(DENSITY))], unit="step")
    scheme.validate(here.topology)
    run = sparse_runs.Run(scheme, here, N)
    assert {"residual", "velocity", "step", "phase", "changes"} == set(run.variables)
    model = sparse_reference.DGC(here.topology.nodes, N, 0.2)
    for number, g in enumerate(without_ties(p, 4)):
        if number == 2:
            model.density = DENSITY
        np.testing.assert_allclose(run.step(tf.constant(g[rank])), model.step(g), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n", [0, 1, 50])
def test_nothing_and_zeros(here, n):
    """Fewer elements than workers, too."""
    run = sparse_runs.Run(DGC(DENSITY), here, n)
    for _ in range(2):
        assert run.step(tf.zeros([n])).shape == [n] and not run.kept(n).any()


@pytest.mark.usefixtures("partners")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_is_not_finite_leaves_no_trace(here, bad):
    """Neither in the residual nor in the velocity, of any worker."""
    run = sparse_runs.Run(DGC(DENSITY), here, N)
    good = np.arange(N, dtype=np.float32)
    run.step(tf.constant(good))
    before = run.bits()
    poisoned = good.copy()
    poisoned[-1] = bad if here.topology.rank == 0 else 0
    assert not np.isfinite(run.step(tf.constant(poisoned)).numpy()).all()
    assert before == run.bits()
    run.step(tf.constant(good))
    assert before != run.bits()


def test_one_node_and_mixtures_are_refused(here):
    with pytest.raises(ValueError, match="needs two nodes"):
        DGC().validate(Topology((0, 0), 0))
    with pytest.raises(ValueError, match="no momentum in it"):
        Guarded(DGC(), 1.0)
    with pytest.raises(ValueError, match="some of its schemes apply momentum"):
        Piecewise([(0, DGC()), (3, Dense())]).validate(Topology((0, 1), 0))


def test_slices_are_refused(here):
    if here.topology.num_workers == 1:
        return
    reducer = GradientReducer(Piecewise([(0, DGC(0.2)), (2, DGC(DENSITY))]), here, bucket_bytes=100)
    table = tf.Variable(tf.zeros([3, 2]), name="table")
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    with pytest.raises(ValueError, match="'table:0' is tf.IndexedSlices. Use HiTopK and the optimizer's"):
        reducer.reduce([(rows, table)])
    reducer.reduce([(tf.convert_to_tensor(rows), table)])


def test_fit_with_sgd_alone(keras, comm, topology):
    def fit(optimizer):
        return sparse_runs.fit(keras, DGC(0.1, momentum=0.5), epochs=4, optimizer=optimizer)

    if topology.num_nodes == 1:
        with pytest.raises(ValueError, match="needs two nodes"):
            fit(None)
    elif keras.__name__ == "tf_keras":
        with pytest.raises(ValueError, match="must know the optimizer"):
            fit(lambda: keras.optimizers.SGD(0.05))
    else:
        for wrong in (keras.optimizers.Adam, lambda: keras.optimizers.SGD(0.05, momentum=0.9)):
            with pytest.raises(ValueError, match="applies momentum itself"):
                fit(wrong)
        with pytest.raises(ValueError, match=r"clipvalue=1.0 would cut off.*DGC\(clip_norm="):
            fit(lambda: keras.optimizers.SGD(0.05, clipvalue=1.0))
        _, model, history = fit(lambda: keras.optimizers.SGD(0.05))
        for weight in model.get_weights():
            oracle.assert_identical(comm, weight)
        assert history.history["loss"][-1] < history.history["loss"][0]


@thorough_with(4)
@pytest.mark.parametrize(
    "options, policy", [({"gradient_accumulation_steps": 2}, None), ({}, "mixed_float16")], ids=str
)
def test_all_entries_without_momentum_train_as_dense(topology, options, policy):
    """Only what is applied is sent."""

    def weights(scheme):
        def optimizer():
            return keras3.optimizers.SGD(0.05, **options)

        return sparse_runs.fit(keras3, scheme, optimizer=optimizer, policy=policy)[1].get_weights()

    if topology.num_nodes > 1:
        for one, other in zip(weights(DGC(1.0, momentum=0.0)), weights(Dense()), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


@thorough_with(4)
def test_steps_per_execution(topology):
    if topology.num_nodes > 1:
        ends = []
        for steps in (1, 3):
            strategy, model, _ = sparse_runs.fit(
                keras3,
                DGC(0.1, momentum=0.5),
                optimizer=lambda: keras3.optimizers.SGD(0.05),
                steps_per_execution=steps,
            )
            ends.append([*model.get_weights(), *sparse_runs.kept(strategy.extended.gradients)])
        for one, three in zip(*ends, strict=True):
            np.testing.assert_array_equal(one, three)


@thorough_with(4)
def test_steps_that_loss_scaling_skips_leave_no_trace(topology):
    def optimizer():
        return keras3.optimizers.LossScaleOptimizer(keras3.optimizers.SGD(0.05), initial_scale=2.0**120)

    if topology.num_nodes > 1:
        strategy, *_ = sparse_runs.fit(keras3, DGC(0.1), optimizer=optimizer, policy="mixed_float16")
        assert not any(x.any() for x in sparse_runs.kept(strategy.extended.gradients))


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"clip_norm": 0}, {"error_feedback": False}])
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DGC(**wrong)


def test_what_is_refused_within_a_warm_up(topology):
    warm_up = Piecewise([(0, DGC(0.2)), (1, DGC(0.1))])
    with pytest.raises(ValueError, match="applies momentum itself"):
        warm_up.check_optimizer(keras3.optimizers.SGD(0.1, momentum=0.9))


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping_by_the_optimizer_is_refused(option):
    with pytest.raises(ValueError, match=f"{option}=1.0 would cut off"):
        DGC().check_optimizer(keras3.optimizers.SGD(0.1, **{option: 1.0}))


def test_gradients_that_would_get_no_momentum_are_refused(here, topology):
    with pytest.raises(ValueError, match="would get no momentum"):
        sparse_runs.Run(DGC(), here, 10, "float64")
