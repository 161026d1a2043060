"""Sparse schemes through `fit`, where it touches Keras of both, in all the ways a step can be run."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_sparse_strategy as tss
from lars_pto import LAMB, LARS
from tests.multiprocess import oracle
from tests.multiprocess.sparse_runs import BATCH, ROWS, fit
from tests.thorough import MOSTLY_KERAS3, P, thorough_if
from tf_sparse_strategy.communication import (
    Auto,
    Dense,
    GTopK,
    Guarded,
    HiTopK,
    LinkModel,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)

KINDS = [TopKAllGather, HiTopK, ShardedTopK, GTopK, OkTopK]
ALL = 0.9999  # a density at which messages hold all entries; at 1 there are none


OFTEN = (HiTopK, OkTopK)


@pytest.fixture(params=thorough_if(lambda kind: kind not in OFTEN, KINDS), ids=lambda kind: kind.__name__)
def kind(request):
    """On one node all but the first sum as `Dense` does."""
    return request.param


def residuals(strategy):
    return [v.numpy() for _, state in strategy.residual.buckets for v in state.values()]


def assert_same_weights(one, other, tolerance=0.0):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@MOSTLY_KERAS3
@pytest.mark.parametrize("embedding", [False, True])
def test_density_one_trains_as_dense(keras, comm, embedding):
    dense = fit(keras, Dense(), embedding=embedding)[1]
    sparse = fit(keras, TopKAllGather(ALL), embedding=embedding)[1]
    assert_same_weights(sparse, dense, tolerance=2e-6)


EACH = [kind(0.1) for kind in KINDS]
EACH += [Piecewise([(0, HiTopK(0.5)), (1, ShardedTopK(0.1)), (4, Dense())])]


IN_EACH_DTYPE = [(x, policy) for policy in ("float32", "mixed_float16", "mixed_bfloat16") for x in EACH]


def is_rare(case):
    scheme, policy = case
    return policy != "float32" and (policy, type(scheme)) != ("mixed_bfloat16", OkTopK)


@pytest.mark.parametrize("case", thorough_if(is_rare, IN_EACH_DTYPE), ids=str)
def test_it_learns_and_workers_agree(comm, topology, case):
    """Where a layer computes in 16 bits, gradients of its float32 weights are selected from and kept."""
    scheme, policy = case
    strategy, model, history = fit(keras3, scheme, epochs=9, policy=policy)
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)
    assert history.history["loss"][-1] < 0.7 * history.history["loss"][0]
    drops = scheme.share(topology).holders > 1 and not isinstance(scheme, Piecewise)
    held = [r for r in residuals(strategy) if r.ndim and r.dtype == np.float32]
    assert any(r.any() for r in held) == drops
    assert all(np.isfinite(r).all() for r in held)


WITH_FEW = [HiTopK(0.1), Piecewise([(0, Dense()), (1, HiTopK(0.1))])]


@pytest.mark.parametrize("scheme", [*WITH_FEW, HiTopK(1.0), Dense()], ids=repr)
def test_rank_0_tells_of_optimizers_that_learn_worse(topology, caplog, scheme):
    strategy = tss.SparseStrategy(communication=scheme)
    with strategy.scope():
        weights = keras3.Variable(np.zeros([4, 4], np.float32))
        for optimizer in (keras3.optimizers.AdamW(), LAMB(), keras3.optimizers.SGD(), LARS(1.0)):
            optimizer.build([weights])
            optimizer.build([weights])  # as `compile` and `fit` may
    told = [message for message in caplog.messages if "models learn much" in message]
    some = topology.rank == 0 and topology.num_nodes > 1 and scheme in WITH_FEW
    assert [message.split()[0] for message in told] == (["AdamW", "LAMB"] if some else [])


SWITCHING = [
    Piecewise([(0, HiTopK(0.5)), (2, ShardedTopK(0.1)), (4, Dense())], unit="step"),
    Guarded(HiTopK(0.1), limit=1e-6, every=2, action="dense"),
    Auto(0.1, links=LinkModel(0.0, 0.0, 0.0, 1e-3, selection=1e-9)),
]
BY_THREE = [*((keras3, s) for s in (*(kind(0.1) for kind in KINDS), *SWITCHING)), (tf_keras, HiTopK(0.1))]


@pytest.mark.parametrize("of", thorough_if(lambda pair: not isinstance(pair[1], OFTEN), BY_THREE))
def test_steps_per_execution(of):
    framework, scheme = of
    one = fit(framework, scheme)
    three = fit(framework, scheme, steps_per_execution=3)
    tolerance = 0 if P <= 2 else 1e-5  # more than two have several orders to add up small vectors in
    assert_same_weights(one[1], three[1], tolerance)
    for a, b in zip(residuals(one[0]), residuals(three[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_run_eagerly_is_the_same(kind):
    graph, eager = fit(keras3, kind(0.1)), fit(keras3, kind(0.1), run_eagerly=True)
    assert_same_weights(graph[1], eager[1], tolerance=2e-6)


def test_gradient_accumulation(comm, topology, kind):
    """Only what is applied is communicated: every second step, the mean of two."""

    def sgd():
        return keras3.optimizers.SGD(0.05, gradient_accumulation_steps=2)

    dense = fit(keras3, Dense(), optimizer=sgd)[1]
    strategy, model, _ = fit(keras3, kind(ALL), optimizer=sgd)
    assert_same_weights(model, dense, tolerance=2e-6)
    strategy, model, _ = fit(keras3, Piecewise([(0, kind(0.1))], unit="step"), optimizer=sgd)
    states = [state for _, state in strategy.extended.gradients.memory.buckets if "step" in state]
    is_sparse = kind(0.1).share(topology).holders > 1
    assert {int(state["step"]) for state in states} == ({ROWS // BATCH // 2} if is_sparse else set())
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)
    kept = [r for r in residuals(strategy) if r.ndim and r.dtype == np.float32]
    assert any(r.any() for r in kept) == is_sparse


def test_mixed_precision(kind):
    dense = fit(keras3, Dense(), policy="mixed_float16")[1]
    sparse = fit(keras3, kind(ALL), policy="mixed_float16")[1]
    assert_same_weights(sparse, dense, tolerance=2e-6)


def scaled(keras, initial_scale):
    """SGD under loss scaling, of this Keras."""
    module = keras.optimizers if keras.__name__ == "keras" else keras.mixed_precision
    return module.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=initial_scale)


@MOSTLY_KERAS3
def test_steps_that_loss_scaling_skips_leave_no_trace(keras, comm, topology, kind):
    """A scale so large that every gradient overflows, however often it is halved."""
    strategy, model, _ = fit(
        keras, kind(0.1), optimizer=lambda: scaled(keras, 2.0**120), policy="mixed_float16"
    )
    assert not any(r.any() for r in residuals(strategy))
    untouched = oracle.start(keras.models.clone_model(model))
    assert_same_weights(model, untouched)


@MOSTLY_KERAS3
def test_a_step_that_loss_scaling_skips_leaves_what_was_kept(keras, topology, kind):
    """Infinite on the last worker alone, after steps that were not."""
    strategy, model, _ = fit(keras, kind(0.1), optimizer=lambda: scaled(keras, 8.0))
    kept, weights = residuals(strategy), model.get_weights()
    x, y = oracle.regression(BATCH)
    x[-1] = np.inf
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for before, after in zip([*kept, *weights], [*residuals(strategy), *model.get_weights()], strict=True):
        np.testing.assert_array_equal(before, after)
    x[-1] = 0
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert any((a != b).any() for a, b in zip(weights, model.get_weights(), strict=True))


def test_tf_keras_trains_a_variable_that_is_not_trainable(partners, comm):
    """By a step of one's own; the scheme sums it with the others."""
    strategy = tss.SparseStrategy(communication=TopKAllGather(0.01))
    with strategy.scope():
        weights = [tf.Variable(tf.zeros([50, 40]), trainable=trainable) for trainable in (True, False)]
        optimizer = tf_keras.optimizers.legacy.SGD(1.0)
    gradients = [tf.random.stateless_normal([50, 40], [comm.topology.rank, seed]) for seed in (1, 2)]

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients(zip(gradients, weights, strict=True)))

    step()
    applied = sum(np.count_nonzero(w.numpy()) for w in weights)
    assert 40 <= applied <= 40 * comm.topology.num_workers


def test_columns_that_are_not_finite_leave_residuals_alone(comm, topology, partners):
    """Each worker sees those of its own columns of a table."""
    strategy = tss.SparseStrategy(communication=TopKAllGather(0.1))
    with strategy.scope():
        ids = keras3.Input([2], dtype="int32")
        x = keras3.layers.Flatten()(tss.layers.ShardedEmbedding(9, 4)(ids))
        model = oracle.start(keras3.Model(ids, keras3.layers.Dense(5)(keras3.layers.Dense(8)(x))))
        optimizer = keras3.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant([[1, 2], [3, 4]])) ** 2)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        for place, g in enumerate(gradients):
            if isinstance(g, tf.IndexedSlices):
                gradients[place] = tf.IndexedSlices(g.values * factor, g.indices, g.dense_shape)
        optimizer.apply(gradients, model.trainable_variables)

    strategy.run(step, [tf.constant(1.0)])
    before = residuals(strategy)
    assert topology.num_nodes == 1 or any(kept.any() for kept in before)
    strategy.run(step, [tf.constant(np.inf if topology.rank == 0 else 1.0, tf.float32)])
    for old, new in zip(before, residuals(strategy), strict=True):
        np.testing.assert_array_equal(new, old)
