"""Callbacks that write files: ModelCheckpoint, BackupAndRestore, CSVLogger, TensorBoard."""

import argparse
import csv
import os
import tempfile

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.multiprocess.saving_models import (
    X,
    Y,
    assert_same_everywhere,
    assert_same_state,
    build,
    fit,
    interruption,
    state,
    tree,
)
from tf_sparse_strategy import keras_file_callbacks, keras_saving, saving


@pytest.fixture
def directory(comm, shared_tmp, keras, monkeypatch, tmp_path):
    """A directory of the shared disk; temporary files go to this worker's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return shared_tmp / keras.__name__


def test_model_checkpoint(keras, strategy, comm, directory):
    best = keras.callbacks.ModelCheckpoint(
        str(directory / "best.keras"), monitor="loss", save_best_only=True
    )
    weights = keras.callbacks.ModelCheckpoint(
        str(directory / "{epoch}.weights.h5"), save_weights_only=True
    )
    model = build(keras, strategy)
    history = fit(model, epochs=2, callbacks=[best, weights])
    assert best.best == pytest.approx(min(history.history["loss"]))
    assert_same_everywhere(comm, [np.float64(best.best)])
    other = build(keras, strategy, seed=7)
    other.load_weights(str(directory / "2.weights.h5"))
    assert_same_state(other.get_weights(), model.get_weights())
    assert tree(directory) == ["1.weights.h5", "2.weights.h5", "best.keras"]
    assert [name for name in os.listdir(directory) if "temp" in name] == []


def test_a_checkpoint_that_may_still_be_written_is_refused(keras, strategy, topology, comm, directory):
    """Outside the scope nobody waits for the first worker."""
    path = str(directory / "last.keras")
    model = build(keras, strategy)
    fit(model, epochs=1, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    if topology.rank > 0:
        with pytest.raises(RuntimeError, match="outside strategy.scope"):
            keras.models.load_model(path)
    comm.barrier()
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert_same_state(loaded.get_weights(), model.get_weights())
    keras.models.load_model(path)  # it is complete: all have read it


def test_a_follower_that_sees_no_checkpoint_reads_the_firsts(strategy, topology, directory, monkeypatch):
    """`tf.train.latest_checkpoint` on a disk that is slow to tell."""
    model = build(tf_keras, strategy)
    path = str(directory / "weights")
    model.save_weights(path)
    other = build(tf_keras, strategy, seed=7)
    other.load_weights(path if topology.rank == 0 else None)
    assert_same_state(other.get_weights(), model.get_weights())


def test_backup_and_restore(keras, strategy, comm, topology, directory):
    reference = build(keras, strategy)
    fit(reference, epochs=2)

    def backup():
        return keras.callbacks.BackupAndRestore(str(directory))

    interrupted = build(keras, strategy)
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(interrupted, epochs=2, callbacks=[backup(), interruption(keras, at_epoch=1)])
    resumed = build(keras, strategy, seed=7)
    history = fit(resumed, epochs=2, callbacks=[backup()])
    assert history.epoch == [1]
    assert_same_state(state(resumed), state(reference))
    assert_same_everywhere(comm, state(resumed))
    comm.barrier()
    assert tree(directory) == []
    assert fit(resumed, epochs=2).epoch  # without the callback


def test_backup_missing_on_one_disk_fails_everywhere(keras, strategy, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # not shared
    model = build(keras, strategy)
    for error, text in ((RuntimeError, "interrupted"), (FileNotFoundError, "missing on worker.*1")):
        callbacks = [keras.callbacks.BackupAndRestore("backup"), interruption(keras, at_epoch=1)]
        with pytest.raises(error, match=text):
            fit(model, epochs=2, callbacks=callbacks)


def test_csv_logger(keras, strategy, comm, topology, directory):
    path = directory.with_suffix(".csv")
    history = fit(
        build(keras, strategy), epochs=2, callbacks=[keras.callbacks.CSVLogger(str(path))]
    )
    comm.barrier()
    with open(path) as stream:
        rows = list(csv.reader(stream))
    assert rows[0][0] == "epoch" and [row[0] for row in rows[1:]] == ["0", "1"]
    losses = [float(row[rows[0].index("loss")]) for row in rows[1:]]
    np.testing.assert_allclose(losses, history.history["loss"], rtol=1e-6)


def test_tensorboard(keras, strategy, comm, topology, directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # not shared
    board = keras.callbacks.TensorBoard("logs", update_freq=1, profile_batch=2)
    beside = keras.callbacks.ModelCheckpoint("logs/m.weights.h5", save_weights_only=True)
    fit(
        build(keras, strategy),
        epochs=2,
        callbacks=[board, beside],
        validation_data=(X, Y),
    )
    assert board.log_dir == "logs"
    events = [file for file in tree(tmp_path) if "events" in file and not file.endswith("profile-empty")]
    if topology.rank:
        assert events == [] and not os.path.exists("logs")
    else:
        assert {os.path.dirname(file) for file in events} == {"logs/train", "logs/validation"}
        assert any(file.endswith("xplane.pb") for file in tree(tmp_path))


def test_all_log_without_the_hooks(keras, strategy, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for module in (saving, keras_saving, keras_file_callbacks):
        monkeypatch.setattr(module, "ours", lambda strategy: None)
    board = keras.callbacks.TensorBoard("logs")
    fit(build(keras, strategy), callbacks=[keras.callbacks.CSVLogger("log.csv"), board])
    assert os.path.exists("log.csv")
    assert os.path.exists("logs")  # tf_keras deletes the others' temporary part of it


@pytest.mark.parametrize("what", ["settings", "a variable of all workers", "a legacy optimizer"])
def test_what_a_model_holds_is_not_asked_what_it_is(strategy, comm, topology, shared_tmp, what):
    """Before the first step: some values make a variable when they are asked, or read one of all workers."""
    keras = tf_keras if what == "a legacy optimizer" else keras3
    model = build(keras, strategy)
    if what == "settings":
        model.settings = argparse.Namespace(iterations=1000)
    elif what == "a variable of all workers":
        with strategy.scope():
            model.seen = tf.Variable(
                0.0, synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM, trainable=False,
            )  # fmt: skip
    else:
        with strategy.scope():
            model.compile(keras.optimizers.legacy.SGD(0.1), "mse")
    workers = strategy.extended.collectives
    before = workers.traffic()[0]
    path = str(shared_tmp / "model.weights.h5")
    if topology.rank == 0:  # alone, as a model without tables may be
        model.save_weights(path)
    assert workers.traffic()[0] == before
    comm.barrier()
    model.save_weights(path)
    comm.barrier()
    backup = keras.callbacks.BackupAndRestore(str(shared_tmp / "backup"))
    fit(model, callbacks=[backup])
