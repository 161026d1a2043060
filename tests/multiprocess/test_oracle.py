"""Training with P workers computes what one process computes on the global batch.

Tolerance: float32 sums over a batch are grouped by worker, which changes each gradient by some
units in the last place, about 1e-7. Adam, which divides by the root of the mean square gradient,
would amplify that where a gradient is near zero; this model's are not. After 20 steps the largest
difference measured in any weight, log or prediction was 2.4e-7 (each optimizer once, Adam with
synchronized BatchNorm, P = 2 and 4); the limit is ten times that.
"""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.thorough import thorough
from tf_sparse_strategy.gradients import GradientReducer

# 25 rows in global batches of 8: three whole steps and a tail of one row, fewer than the workers.
ROWS, BATCH, EPOCHS = 25, 8, 5

OPTIMIZERS = {
    "sgd": lambda k: k.optimizers.SGD(0.1),
    "momentum": lambda k: k.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda k: k.optimizers.Adam(0.02),
    "adamw": lambda k: k.optimizers.AdamW(0.02, weight_decay=0.01),
}


def experiment(keras, optimizer, normalization=None, epochs=EPOCHS, full=False, **compile_args):
    """fit; `full`: with validation data, then evaluate and predict."""

    def run(scope):
        with scope():
            layer = normalization(keras) if normalization else None
            model = oracle.mlp(keras, layer)
            model.compile(
                optimizer=OPTIMIZERS[optimizer](keras), loss="mse", metrics=["mae"], **compile_args
            )
        held_out = oracle.dataset(11, BATCH, seed=2)
        history = model.fit(
            oracle.dataset(ROWS, BATCH),
            epochs=epochs,
            validation_data=held_out if full else None,
            verbose=0,
        )
        more = {
            "evaluate": lambda: model.evaluate(held_out, verbose=0),
            "predict": lambda: model.predict(oracle.regression(13)[0], batch_size=6, verbose=0),
        }
        return oracle.outcome(model, history, **{k: f() for k, f in more.items() if full})

    return run


def synchronized(keras):
    return keras.layers.BatchNormalization(synchronized=True, momentum=0.8)


@pytest.mark.parametrize(
    "optimizer, communication, settings",
    [
        ("sgd", "dense", {"full": True}),
        pytest.param("sgd", "torus2d", {"normalization": synchronized}, marks=thorough),
        ("momentum", "torus2d", {"steps_per_execution": 3}),
        pytest.param("momentum", "dense", {"normalization": synchronized}, marks=thorough),
        pytest.param("adam", "dense", {}, marks=thorough),
        ("adam", "torus2d", {"normalization": synchronized}),
        ("adamw", "dense", {"run_eagerly": True}),
        ("adamw", "torus2d", {"normalization": synchronized}),
    ],
)
def test_same_as_one_process(comm, keras, optimizer, communication, settings):
    strategy = tss.SparseStrategy(communication)
    ours = oracle.compare(comm, strategy, experiment(keras, optimizer, **settings))
    for name, value in ours.items():
        if name.startswith("weight"):
            oracle.assert_identical(comm, value)


def test_float16_is_near_one_process(comm):
    """As near as eleven bits are, and not as near as exact sums."""
    strategy, run = tss.SparseStrategy("float16"), experiment(keras3, "momentum")
    oracle.compare(comm, strategy, run, rtol=0.01, atol=2e-3)
    if comm.topology.num_workers > 1:
        with pytest.raises(AssertionError):
            oracle.compare(comm, strategy, run)


@pytest.mark.parametrize("rows", [24, 25])
def test_masked_batch_normalization(comm, keras, rows):
    """Synchronized: as many rows as are kept differ from worker to worker, and one may have none."""

    def run(scope):
        with scope():
            inputs = keras.Input((oracle.FEATURES,))
            parts = keras.layers.Masking(10.0)(keras.layers.Reshape((-1, 2))(inputs))
            normal = synchronized(keras)(parts)
            model = oracle.start(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(normal))))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = oracle.regression(rows)
        kept = np.arange(x.size // 2).reshape(rows, -1, 1) % 5 > 1
        x = np.where(kept, x.reshape(rows, -1, 2), 10).reshape(x.shape)
        return oracle.outcome(model, model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0))

    oracle.compare(comm, tss.SparseStrategy(), run)


def _local(self, pairs):
    return [gradient for gradient, _ in pairs]


def _mean(self, pairs, reduce=GradientReducer.reduce):
    return [gradient / 2 for gradient in reduce(self, pairs)]


@pytest.mark.parametrize("wrong", [_local, _mean])
def test_oracle_finds_a_wrong_reduction(comm, strategy, monkeypatch, wrong):
    if comm.topology.num_workers == 1 and wrong is _local:
        pytest.skip("one worker's gradient is the sum")
    monkeypatch.setattr(GradientReducer, "reduce", wrong)
    with pytest.raises(AssertionError):
        oracle.compare(comm, strategy, experiment(keras3, "sgd", epochs=1))


def worker_batches(num_workers):
    """The rows of each worker, step by step, of `ROWS` rows in batches of `BATCH`."""
    x, y = oracle.regression(ROWS)
    for first in range(0, ROWS, BATCH):
        batch = x[first : first + BATCH], y[first : first + BATCH]
        shares = [np.array_split(part, num_workers) for part in batch]
        yield [pair for pair in zip(*shares, strict=True) if len(pair[0])]


def test_batch_norm_of_each_workers_rows(comm, strategy):
    """Not synchronized: moving statistics are the row-weighted mean of the workers'."""

    def build():
        return oracle.mlp(keras3, keras3.layers.BatchNormalization(momentum=0.8))

    with strategy.scope():
        model = build()
        model.compile(optimizer=keras3.optimizers.SGD(0.1), loss="mse")
    history = model.fit(oracle.dataset(ROWS, BATCH), epochs=1, verbose=0)
    ours = oracle.outcome(model, history)
    del ours["log loss"]

    def simulation(_):
        replica, optimizer = build(), keras3.optimizers.SGD(0.1)
        trained, statistics = replica.trainable_variables, replica.non_trainable_variables
        for shares in worker_batches(comm.topology.num_workers):
            rows = sum(len(x) for x, _ in shares)
            before = [tf.convert_to_tensor(v) for v in statistics]
            gradients, after = [], []
            for x, y in shares:
                for variable, value in zip(statistics, before, strict=True):
                    variable.assign(value)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((replica(x, training=True) - y) ** 2) / rows
                gradients.append(tape.gradient(loss, [v.value for v in trained]))
                after.append([tf.convert_to_tensor(v) * len(x) / rows for v in statistics])
            optimizer.apply([tf.add_n(g) for g in zip(*gradients, strict=True)], trained)
            for variable, parts in zip(statistics, zip(*after, strict=True), strict=True):
                variable.assign(tf.add_n(parts))
        return {f"weight {i}": w for i, w in enumerate(replica.get_weights())}

    expected = oracle.single_process(comm, simulation, ours)
    oracle.assert_same(ours, expected)
    for value in ours.values():
        oracle.assert_identical(comm, value)
