"""DeAR with files, callbacks and embedding tables: what others see is whole."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import embedding_models, oracle
from tests.multiprocess.overlap_runs import (
    FUSION,
    adam,
    adamw,
    lars,
    nesterov,
    pair,
    shared_layers,
    trained,
)
from tests.multiprocess.saving_models import assert_same_state, interruption, state
from tests.thorough import thorough, thorough_if

pytestmark = pytest.mark.usefixtures("tolerance")


@pytest.fixture
def limit(comm, tolerance):
    """To the bit between two workers, where a sum has one order only."""
    return 0 if comm.topology.num_workers <= 2 else 100 * tolerance


def assert_close(states, limit):
    for one, other in zip(*states, strict=True):
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


@pytest.fixture(scope="module")
def strategies(comm):
    """(without overlap, with)."""
    return pair()


def built(scope, seed=1, optimizer=adam):
    keras.utils.set_random_seed(seed)
    with scope():
        # No dropout: a backup of Keras's does not hold its generator.
        model = oracle.mlp(keras, keras.layers.BatchNormalization())
        # Eagerly: tracing would take longer than all these tests do.
        model.compile(optimizer(), "mse", run_eagerly=True)
    return model


def fit(model, epochs, **kwargs):
    return model.fit(*DATA, batch_size=8, epochs=epochs, verbose=0, shuffle=False, **kwargs)


ROWS = 26
DATA = (np.linspace(-1, 1, ROWS * 6, dtype="float32").reshape(ROWS, 6), np.linspace(1, 0, ROWS)[:, None])


@pytest.mark.parametrize(
    "optimizer",
    thorough_if(lambda f: f is not lars, [nesterov, adam, adamw, lars]),
    ids=lambda f: f.__name__,
)
def test_backup_and_resume(comm, strategies, shared_tmp, monkeypatch, tmp_path, optimizer):
    """A run that is interrupted and resumed by another model = one without interruption or overlap."""
    monkeypatch.chdir(tmp_path)
    reference = built(strategies[0].scope, optimizer=optimizer)
    fit(reference, 3)

    def backup():
        return keras.callbacks.BackupAndRestore(str(shared_tmp / "backup"))

    interrupted = built(strategies[1].scope, optimizer=optimizer)
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(interrupted, 3, callbacks=[backup(), interruption(keras, at_epoch=2)])
    resumed = built(strategies[1].scope, seed=7, optimizer=optimizer)
    assert fit(resumed, 3, callbacks=[backup()]).epoch == [2]
    exact = comm.topology.num_workers == 2 and optimizer is not lars  # whose norms are sums of chunks'
    for ours, expected in zip(state(resumed), state(reference), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0 if exact else 1e-6, atol=0 if exact else 3e-6)


def test_files_load_with_and_without_overlap(comm, strategies, shared_tmp, limit):
    """Saved under either, loaded by plain Keras and under the other, where training goes on alike."""
    states = []
    for number, strategy in enumerate(strategies):
        model = built(strategy.scope)
        fit(model, 1)
        path = str(shared_tmp / f"{number}.keras")
        model.save(path)
        saved = state(model)
        comm.barrier()
        alone = keras.saving.load_model(path) if comm.topology.rank == 0 else None
        if alone is not None:
            assert_same_state(state(alone), saved)
        comm.barrier()
        with strategies[1 - number].scope():
            other = keras.saving.load_model(path)
        assert_same_state(state(other), saved)
        fit(other, 1)
        states.append(state(other))
    assert_close(states, limit)


def test_checkpoints_restore_with_and_without_overlap(comm, strategies, shared_tmp, limit):
    """Of TensorFlow's own kind, written under one, read under the other, where training goes on alike."""
    states = []
    for number, strategy in enumerate(strategies):
        model, path = built(strategy.scope), str(shared_tmp / f"checkpoint {number}")
        fit(model, 1)
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
        comm.barrier()
        other = built(strategies[1 - number].scope, seed=7)
        fit(other, 1)  # so that chunks were ahead before
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path)
        assert_same_state(state(other), state(model))
        fit(other, 1)
        states.append(state(other))
    assert_close(states, limit)


def test_callbacks_that_look_at_weights(comm, strategies, shared_tmp, limit):
    """Best weights kept by callbacks, and weights set by one between epochs."""
    seen = []

    def callbacks():
        def halve(epoch, logs):
            weights = model_of.model.get_weights()
            seen.append(weights[0].sum())
            model_of.model.set_weights([w / 2 for w in weights])

        model_of = keras.callbacks.LambdaCallback(on_epoch_end=halve)
        best = keras.callbacks.EarlyStopping("val_loss", patience=0, mode="max", restore_best_weights=True)
        path = os.path.join(shared_tmp, f"{len(seen)}.weights.h5")
        kept = keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True)
        return [model_of, best, kept]

    without, with_overlap = (
        trained(s, adam, shared_layers, epochs=4, callbacks=callbacks()) for s in strategies
    )
    for name, value in without.items():
        np.testing.assert_allclose(with_overlap[name], value, rtol=limit, atol=limit, err_msg=name)
    assert len(seen) % 2 == 0 and len(set(seen)) > 2


@pytest.mark.parametrize("kind", ["checkpoint", "backup"])
def test_files_within_an_epoch_need_synchronized_weights(strategies, partners, shared_tmp, kind):
    """All workers are told, not the one alone that writes; one callback on all workers is the remedy."""
    path = str(shared_tmp / "within.weights.h5")

    def writer():
        if kind == "backup":
            return keras.callbacks.BackupAndRestore(str(shared_tmp / "backup"), save_freq=2)
        return keras.callbacks.ModelCheckpoint(path, save_freq=2, save_weights_only=True)

    with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
        fit(built(strategies[1].scope), 1, callbacks=[writer()])
    strategies[1].synchronize()

    def synchronize(batch, logs):
        strategies[1].synchronize()

    remedy = keras.callbacks.LambdaCallback(on_train_batch_end=synchronize)
    assert fit(built(strategies[1].scope), 1, callbacks=[remedy, writer()]).epoch == [0]


def tables(second=tss.layers.ShardedEmbedding):
    inputs = keras.Input((3,), dtype="int32")
    both = [keras.layers.Embedding(13, 5)(inputs), second(13, 4)(inputs)]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(both))
    hidden = keras.layers.Dense(3, activation="tanh")(hidden)
    return embedding_models.start(keras.Model(inputs, keras.layers.Dense(1)(hidden)), 1)


@pytest.mark.parametrize(
    ("second", "settings"),
    [
        pytest.param(tss.layers.ShardedEmbedding, {}, marks=thorough),
        pytest.param(tss.layers.ShardedEmbedding, {"clipnorm": 0.05}, marks=thorough),
        (tss.layers.ShardedEmbedding, {"global_clipnorm": 0.05}),
        (keras.layers.Embedding, {"global_clipnorm": 0.05}),
    ],
)
def test_tables_keep_their_path(comm, strategies, second, settings):
    """Sparse gradients, and tables that are divided by columns already."""
    states = []
    for strategy in strategies:
        with strategy.scope():
            model = tables(second)
            model.compile(adam(**settings), "mse")
        model.fit(embedding_models.dataset(16), epochs=2, verbose=0)
        states.append(state(model))
    for with_overlap, without in zip(states[1], states[0], strict=True):
        np.testing.assert_allclose(with_overlap, without, rtol=1e-6, atol=1e-6)


def test_a_sparse_gradient_is_refused(partners):
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR(FUSION, exclude=[]))
    with strategy.scope():
        model = tables()
        model.compile(adam(), "mse")
    with pytest.raises(ValueError, match=r"IndexedSlices.*exclude=\["):
        model.fit(embedding_models.dataset(16), epochs=1, verbose=0)


def test_a_table_of_tensorflow_s_own_is_excluded_by_its_name(strategies):
    """Which ends in ":0"."""
    with strategies[1].scope():
        table = tf.Variable(tf.zeros([4, 2]), name="embeddings")
        optimizer = adam()
        optimizer.build([table])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]))
        optimizer.apply([tape.gradient(loss, table)], [table])

    strategies[1].run(step)
    assert float(tf.norm(table[1])) > 0 == float(tf.norm(table[0]))


def test_tf_keras_is_refused(partners, strategies):
    tf_keras = pytest.importorskip("tf_keras")
    with strategies[1].scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(6,))])
        model.compile("sgd", "mse")
    with pytest.raises(NotImplementedError, match="optimizer of Keras 3"):
        model.fit(*DATA, batch_size=8, verbose=0)
