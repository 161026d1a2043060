"""Runs with and without DeAR that its tests share."""

import keras
import numpy as np
import tensorflow as tf

import lars_pto
import tf_sparse_strategy as tss
from tests.multiprocess import oracle

ROWS, BATCH = 26, 8  # the last batch has 2 rows
FUSION = 64  # bytes: several buckets even here


def pair():
    """(a strategy without overlap, one with)."""
    return tss.SparseStrategy(), tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=FUSION))


def shared_layers(keras):
    """A layer that is called twice, BatchNorm, dropout."""
    inputs = keras.Input((oracle.FEATURES,))
    shared = keras.layers.Dense(oracle.FEATURES, activation="tanh")
    hidden = shared(keras.layers.BatchNormalization()(shared(inputs)))
    hidden = keras.layers.Dropout(0.2, seed=3)(keras.layers.Dense(5)(hidden))
    return oracle.start(keras.Model(inputs, keras.layers.Dense(1)(hidden)))


def assert_divided(strategy, optimizer):
    """Under overlap the workers share this optimizer's updates: results would be alike without, too."""
    if strategy.extended.chunked is not None and strategy.topology.num_workers > 1:
        assert strategy.extended.chunked.of(getattr(optimizer, "inner_optimizer", optimizer)) is not None


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
    assert_divided(strategy, model.optimizer)
    slots = {f"slot {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
    return oracle.outcome(model, history, **slots)


def compare(comm, strategies, *args, tolerance=1e-6, **kwargs):
    """To the bit between two workers, where a sum has one order only."""
    without, with_overlap = (trained(s, *args, **kwargs) for s in strategies)
    assert without.keys() == with_overlap.keys()
    limit = 0 if comm.topology.num_workers <= 2 else tolerance
    for name, value in without.items():
        np.testing.assert_allclose(with_overlap[name], value, rtol=limit, atol=limit, err_msg=name)
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


def lars():
    return lars_pto.LARS(1.0, momentum=0.9, weight_decay=0.01)


def custom_step(strategy, model, optimizer, after=lambda: None, before=lambda: None):
    @tf.function
    def step(x):
        def on_worker():
            before()
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
