"""DeAR against the same training without overlap: same weights, slots, logs and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tf_sparse_strategy.overlap.update import ChunkedUpdate

ROWS, BATCH = 26, 8  # the last batch has 2 rows
FUSION = 64  # bytes: several buckets even here


@pytest.fixture(scope="module")
def strategies(comm):
    """(without overlap, with)."""
    return tss.SparseStrategy(), tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=FUSION))


def shared_layers(keras):
    """A layer that is called twice, BatchNorm, dropout."""
    inputs = keras.Input((oracle.FEATURES,))
    shared = keras.layers.Dense(oracle.FEATURES, activation="tanh")
    hidden = shared(keras.layers.BatchNormalization()(shared(inputs)))
    hidden = keras.layers.Dropout(0.2, seed=3)(keras.layers.Dense(5)(hidden))
    return oracle.start(keras.Model(inputs, keras.layers.Dense(1)(hidden)))


def trained(strategy, optimizer, build=oracle.mlp, epochs=2, steps=1, callbacks=(), **compile_args):
    """Weights, logs and slots after `fit` with validation."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = build(keras)
        model.compile(optimizer(), "mse", steps_per_execution=steps, **compile_args)
    history = model.fit(
        oracle.dataset(ROWS, BATCH), validation_data=oracle.dataset(7, BATCH, seed=1), epochs=epochs,
        verbose=0, callbacks=list(callbacks),
    )  # fmt: skip
    slots = {f"slot {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
    return oracle.outcome(model, history, **slots)


def compare(comm, strategies, *args, **kwargs):
    """To the bit between two workers, where a sum has one order only."""
    without, with_overlap = (trained(s, *args, **kwargs) for s in strategies)
    assert without.keys() == with_overlap.keys()
    exact = comm.topology.num_workers <= 2
    for name, value in without.items():
        np.testing.assert_allclose(
            with_overlap[name], value, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6, err_msg=name
        )
    return with_overlap


def nesterov():
    return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)


def adam(**settings):
    return keras.optimizers.Adam(0.02, **settings)


def adamw():
    """Decays some variables, by a rate that changes."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize("optimizer", [nesterov, adam, adamw], ids=lambda f: f.__name__)
def test_same_as_without(comm, strategies, optimizer):
    compare(comm, strategies, optimizer)


def test_several_steps_per_call(comm, strategies):
    compare(comm, strategies, nesterov, steps=4, build=shared_layers)


@pytest.mark.parametrize(
    "settings", [{"clipvalue": 0.01}, {"gradient_accumulation_steps": 3}], ids=str
)
def test_settings(comm, strategies, settings):
    compare(comm, strategies, lambda: adam(**settings))


@pytest.mark.parametrize("settings", [{"clipnorm": 0.05}, {"global_clipnorm": 0.05}], ids=str)
def test_norms_of_wholes(strategies, settings):
    """Their squares are added up in another order than without overlap."""
    without, with_overlap = (trained(s, lambda: adam(**settings)) for s in strategies)
    oracle.assert_same(with_overlap, without)


def test_loss_scaling_skips_a_step_on_all_workers(comm, strategies):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(nesterov(), initial_scale=2.0**127)

    compare(comm, strategies, optimizer)


def test_eagerly(comm, strategies):
    compare(comm, strategies, adam, epochs=1, run_eagerly=True)


class Controlled:
    """Replaces a method of ChunkedUpdate, and counts its calls."""

    def __init__(self, monkeypatch, name, replacement):
        self.calls = 0

        def counted(update, *args):
            self.calls += 1
            return replacement(update, *args)

        monkeypatch.setattr(ChunkedUpdate, name, counted)


def test_what_is_behind_differs(partners, strategies, monkeypatch):
    """Without the gathering at the ends of epochs the comparison fails."""
    without = trained(strategies[0], adam)
    control = Controlled(monkeypatch, "synchronize", lambda update: update._state.assign(0))
    behind = trained(strategies[1], adam)
    assert control.calls > 0
    with pytest.raises(AssertionError):
        oracle.assert_same(behind, without, rtol=1e-3, atol=1e-3)


def test_a_step_gathers_and_scatters(partners, strategies):
    """Every bucket is reduced and gathered once; no gradient is all-reduced."""
    strategy = strategies[1]
    with strategy.scope():
        model = oracle.mlp(keras)
        optimizer = adam()
        optimizer.build(model.trainable_variables)
    step = custom_step(strategy, model, optimizer)
    step(tf.ones([2, oracle.FEATURES]))
    graph = step.get_concrete_function(tf.ones([2, oracle.FEATURES])).graph
    kinds = [op.type for op in graph.get_operations()]
    [update] = [u for u in strategy.extended.chunked._updates if u.optimizer is optimizer]
    assert len(update._buckets) > 1
    assert kinds.count("HorovodAlltoall") == len(update._buckets)
    assert "HorovodAllreduce" not in kinds
    inner = [n.op for f in graph.as_graph_def().library.function for n in f.node_def]
    assert inner.count("HorovodAllgather") >= len(update._buckets)


def custom_step(strategy, model, optimizer, after=lambda: None):
    @tf.function
    def step(x):
        def on_worker():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            after()
            return loss

        return strategy.run(on_worker)

    return step


def built(strategy, optimizer=adam):
    with strategy.scope():
        model = oracle.mlp(keras)
        optimizer = optimizer()
        optimizer.build(model.trainable_variables)
    return model, optimizer


def test_reading_what_is_behind(comm, partners, strategies):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    step = custom_step(strategy, model, optimizer)
    step(tf.ones([2, oracle.FEATURES]))
    slot = optimizer.variables[-1]
    for look in (
        model.get_weights,  # also on one worker alone: it does not wait for the others
        lambda: model(tf.ones([2, oracle.FEATURES])),
        slot.numpy,
        lambda: model.set_weights(model.get_weights()),
        lambda: model.trainable_variables[0].assign_add(tf.ones([oracle.FEATURES, 8])),
        lambda: tf.train.Checkpoint(model=model).write("unused"),
    ):
        if comm.topology.rank == 0:
            with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                look()
    strategy.synchronize()
    oracle.assert_identical(comm, np.concatenate([w.ravel() for w in model.get_weights()]))
    assert np.any(slot.numpy())


def test_what_is_assigned_between_steps_counts(strategies, partners):
    """Weights and slots that are loaded, restored or set after `synchronize` are where training goes on."""
    results = []
    for strategy in strategies:
        model, optimizer = built(strategy)
        step = custom_step(strategy, model, optimizer)
        for _ in range(2):
            step(tf.ones([2, oracle.FEATURES]))
        strategy.synchronize()
        oracle.start(model, seed=9)
        optimizer.variables[-1].assign([3.0])
        step(tf.ones([2, oracle.FEATURES]))
        step(tf.ones([2, oracle.FEATURES]))
        strategy.synchronize()
        results.append([*model.get_weights(), optimizer.variables[-1].numpy()])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_functions_that_would_see_old_weights(partners, strategies):
    strategy = strategies[1]
    with strategy.scope():
        model, optimizer = oracle.mlp(keras), adam()
    x = tf.ones([2, oracle.FEATURES])
    early = tf.function(lambda: strategy.run(lambda: model(x)))
    early()
    with pytest.raises(RuntimeError, match="optimizer.build"):
        custom_step(strategy, model, optimizer)(x)
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        optimizer = adam()
        optimizer.build(model.trainable_variables)
    custom_step(strategy, model, optimizer)(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced before the optimizer"):
        early()
    late = tf.function(lambda: strategy.run(lambda: model(x)))
    found = late().numpy()
    strategy.synchronize()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5)
    np.testing.assert_allclose(found, early().numpy(), rtol=1e-5)
    for after in (
        lambda: model(x),
        lambda: model.trainable_variables[0].assign_add(tf.ones([oracle.FEATURES, 8])),
        lambda: optimizer.apply_gradients([(tf.ones([1]), model.trainable_variables[-1])]),
    ):
        with pytest.raises(RuntimeError, match="overlap=DeAR"):
            custom_step(strategy, model, optimizer, after)(x)


def test_another_optimizer_takes_over(partners, strategies):
    strategy = strategies[1]
    model, first = built(strategy)
    x = tf.ones([2, oracle.FEATURES])
    step = custom_step(strategy, model, first)
    step(x)
    with strategy.scope():
        second = adam()
        with pytest.raises(RuntimeError, match="synchronize"):
            second.build(model.trainable_variables)
        strategy.synchronize()
        second = adam()
        second.build(model.trainable_variables)
    custom_step(strategy, model, second)(x)
    strategy.synchronize()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no longer updates"):
        step(x)
    strategy.synchronize()


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: keras.optimizers.Adafactor(0.1), "means over rows"),
        (lambda: tss_lars(), "whole variable"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), "use_ema"),
    ],
    ids=["adafactor", "lars", "ema"],
)
def test_refused_optimizers(partners, strategies, make, reason):
    with pytest.raises(ValueError, match=reason):
        built(strategies[1], make)


def tss_lars():
    import lars_pto

    return lars_pto.LARS(0.1)


def test_refused_constraint(partners, strategies):
    with strategies[1].scope():
        layer = keras.layers.Dense(2, kernel_constraint="non_neg")
        layer.build((None, 3))
        with pytest.raises(ValueError, match="constraint"):
            adam().build(layer.trainable_variables)
