"""Residuals through Keras's backups and TensorFlow's checkpoints."""

import contextlib
import io
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import saving_models
from tests.multiprocess.saving_models import interruption
from tests.multiprocess.sparse_runs import SHAPES, kept, step
from tests.thorough import thorough
from tf_sparse_strategy import communication, saving
from tf_sparse_strategy.communication import (
    DGC,
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

FLAT = TopKAllGather(0.1)


def build(keras, seed=0, scheme=FLAT):
    import tf_sparse_strategy as tss

    strategy = tss.SparseStrategy(communication=scheme)
    model = saving_models.build(keras, strategy, seed)
    if isinstance(scheme, DGC):  # has the momentum
        with strategy.scope():
            model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
    return strategy, model


def all_state(strategy, model):
    return [*saving_models.state(model), *kept(strategy.extended.gradients)]


def test_checkpoint(keras, comm, topology, shared_tmp):
    strategy, model = build(keras)
    saving_models.fit(model)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, residual=strategy.residual)
    path = checkpoint.save(str(shared_tmp / keras.__name__))
    saving_models.fit(model)
    expected = all_state(strategy, model)
    assert len(expected) > len(saving_models.state(model)) or topology.num_workers == 1
    other_strategy, other = build(keras, seed=7)
    saving_models.fit(other)
    restored = tf.train.Checkpoint(
        model=other, optimizer=other.optimizer, residual=other_strategy.residual
    )
    restored.restore(path)
    saving_models.fit(other)
    saving_models.assert_same_state(all_state(other_strategy, other), expected)


def test_checkpoint_of_nothing_but_residuals(comm, topology, shared_tmp):
    import tf_sparse_strategy as tss

    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    first = tss.SparseStrategy(communication=communication.TopKAllGather(0.1))
    step(first.extended.gradients, variables, topology, 0)
    path = tf.train.Checkpoint(residual=first.residual).save(str(shared_tmp / "alone"))
    second = tss.SparseStrategy(communication=communication.TopKAllGather(0.1))
    tf.train.Checkpoint(residual=second.residual).restore(path)
    np.testing.assert_array_equal(
        step(first.extended.gradients, variables, topology, 1),
        step(second.extended.gradients, variables, topology, 1),
    )


STEERED = [OkTopK(0.1), Guarded(OkTopK(0.05), limit=1e-9, every=2, action="density")]
STEERED += [Piecewise([(0, HiTopK(0.1)), (3, Dense()), (5, ShardedTopK(0.1))], unit="step")]
STEERED += [ShardedTopK(0.1, applied=2), GTopK(0.1), DGC(0.1)]
STEERED += [Auto(0.1, links=LinkModel(0.0, 1e-10, 0.0, 1e-4))]  # slow between nodes: a sparse one is chosen


# Others: `make check`.
IN_KERAS, IN_TF_KERAS = (type(None), OkTopK, Piecewise, DGC, Auto), (type(None), Guarded)
KERAS_AND_SCHEMES = [
    pytest.param(
        name,
        scheme,
        marks=() if isinstance(scheme, IN_KERAS if name == "keras" else IN_TF_KERAS) else thorough,
        id=f"{name}-{type(scheme).__name__}",
    )
    for name in ("keras", "tf_keras")
    for scheme in (None, *STEERED)
]


@pytest.mark.parametrize(("keras", "scheme"), KERAS_AND_SCHEMES, indirect=["keras"])
def test_backup_and_restore(keras, topology, shared_tmp, scheme):
    """A flat scheme in one Keras, a hierarchical one in the other, and those whose collectives vary."""
    if isinstance(scheme, DGC) and (keras.__name__ == "tf_keras" or topology.num_nodes == 1):
        return  # refused: test_dgc.py
    scheme = scheme or (HiTopK(0.1) if keras.__name__ == "keras" else TopKAllGather(0.1))
    directory = str(shared_tmp / keras.__name__)
    strategy, reference = build(keras, scheme=scheme)
    saving_models.fit(reference, epochs=3)
    expected = all_state(strategy, reference)

    def backup():
        return keras.callbacks.BackupAndRestore(directory)

    _, interrupted = build(keras, scheme=scheme)
    with pytest.raises(RuntimeError, match="interrupted"):
        saving_models.fit(interrupted, epochs=3, callbacks=[backup(), interruption(keras, at_epoch=2)])
    strategy, resumed = build(keras, seed=7, scheme=scheme)
    history = saving_models.fit(resumed, epochs=3, callbacks=[backup()])
    assert history.epoch == [2]
    saving_models.assert_same_state(all_state(strategy, resumed), expected)


@pytest.mark.parametrize("file", ["residual-", "training_metadata"])
def test_disks_that_have_a_part_of_a_backup(comm, topology, partners, shared_tmp, monkeypatch, file):
    """One would go on from what the others lack: all refuse, and none waits for another."""
    import keras

    backup = keras.callbacks.BackupAndRestore(str(shared_tmp), delete_checkpoint=False)
    saving_models.fit(build(keras, scheme=TopKAllGather(0.1))[1], callbacks=[backup])
    comm.barrier()
    of = saving._fingerprint
    lacks = file if topology.rank else "nothing"
    monkeypatch.setattr(saving, "_fingerprint", lambda path: saving._MISSING if lacks in path else of(path))
    resumed = build(keras, seed=7, scheme=TopKAllGather(0.1))[1]
    with pytest.raises(FileNotFoundError, match=f"{file}.* is missing on worker"):
        saving_models.fit(resumed, epochs=2, callbacks=[keras.callbacks.BackupAndRestore(str(shared_tmp))])


def test_a_kill_between_the_files_of_a_backup(topology, comm, shared_tmp, monkeypatch):
    """The second epoch's residual is written, its weights are not: those of the first go together."""
    import keras

    def backup():
        return keras.callbacks.BackupAndRestore(str(shared_tmp))

    strategy, reference = build(keras, scheme=HiTopK(0.1))
    saving_models.fit(reference, epochs=3)
    expected = all_state(strategy, reference)
    _, killed = build(keras, scheme=HiTopK(0.1))
    save, calls = killed.save_weights, []

    def save_once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("killed")
        save(*args, **kwargs)

    monkeypatch.setattr(killed, "save_weights", save_once)

    def kill_others(epoch, logs):  # which save nothing
        if epoch == 1:
            raise RuntimeError("killed")

    others = keras.callbacks.LambdaCallback(on_epoch_end=kill_others)
    with pytest.raises(RuntimeError, match="killed"):
        saving_models.fit(killed, epochs=2, callbacks=[backup(), others])
    comm.barrier()
    residuals = list(shared_tmp.glob("residual-*.npz"))
    strategy, resumed = build(keras, seed=7, scheme=HiTopK(0.1))
    history = saving_models.fit(resumed, epochs=3, callbacks=[backup()])
    assert history.epoch == [1, 2]
    saving_models.assert_same_state(all_state(strategy, resumed), expected)
    kept_any = HiTopK(0.1).share(topology).holders > 1
    assert len(residuals) == (2 if kept_any else 0)


def test_a_kill_while_a_backup_tells_its_epoch(topology, comm, shared_tmp, monkeypatch):
    """Keras empties the file first, and no later start could read it. Before that it copies it, if asked."""
    import keras
    from keras.src.callbacks import backup_and_restore

    _, model = build(keras, scheme=Dense())
    backup = keras.callbacks.BackupAndRestore(
        str(shared_tmp), double_checkpoint=True, delete_checkpoint=False
    )
    saving_models.fit(model, callbacks=[backup])

    def killed(*_):
        raise RuntimeError("killed")

    monkeypatch.setattr(backup_and_restore.json, "dumps", killed)
    with pytest.raises(RuntimeError, match="killed") if topology.rank == 0 else contextlib.nullcontext():
        backup._save_model()
    comm.barrier()
    files = {name: shared_tmp / f"training_metadata.json{name}" for name in ("", ".bkp")}
    told = {name: json.loads(path.read_text())["epoch"] for name, path in files.items()}
    assert told == {"": 1, ".bkp": 1}


def test_a_backup_leaves_no_residual_of_other_weights(comm, shared_tmp, caplog):
    import keras

    stale = shared_tmp / "residual-7.npz"
    if comm.topology.rank == 0:
        stale.write_bytes(b"")
    comm.barrier()
    _, model = build(keras, scheme=Dense())
    backup = keras.callbacks.BackupAndRestore(str(shared_tmp), delete_checkpoint=False)
    saving_models.fit(model, callbacks=[backup])
    assert "what had not been sent when these weights were saved is lost" in caplog.text
    comm.barrier()
    assert not stale.exists()


def test_a_backup_keeps_what_several_workers_left(keras, comm, topology, shared_tmp):
    """Also on one worker, which has no residual of its own: of gradients it has not reduced yet."""
    record = {"tensors": [[[3, 1], "float32"]], "buckets": [[0]], "scheme": "HiTopK"}
    record |= {"places": [[0, 0], [1, 0]], "nodes": [0, 1]}
    content = io.BytesIO()
    words = np.frombuffer(json.dumps([record]).encode(), np.uint8)
    np.savez(content, **{"records": words, "0/0/residual": np.ones([2, 3], np.float32)})
    strategy, model = build(keras, scheme=HiTopK(0.1))
    strategy.residual.deserialize(content.getvalue())

    def backup():
        return keras.callbacks.BackupAndRestore(str(shared_tmp / keras.__name__))

    with pytest.raises(RuntimeError, match="interrupted"):
        saving_models.fit(model, epochs=2, callbacks=[backup(), interruption(keras, at_epoch=1)])
    comm.barrier()
    strategy, resumed = build(keras, scheme=HiTopK(0.1))
    saving_models.fit(resumed, epochs=2, callbacks=[backup()])
    [left] = strategy.residual._restored
    np.testing.assert_array_equal(left["arrays"][0, "residual"], np.ones([2, 3]))


@pytest.mark.parametrize("is_built", [True, False])
def test_backups_of_several_optimizers(comm, topology, shared_tmp, caplog, is_built):
    """That which Keras compiles a model with by itself is never applied. One that the first step builds
    begins to count anew in a run that goes on."""
    import keras

    import tf_sparse_strategy as tss

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.own_optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"loss": loss}

    x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")

    def fit(epochs):
        strategy = tss.SparseStrategy(communication=HiTopK(0.1))
        with strategy.scope():
            model = Own([keras.Input([4]), keras.layers.Dense(8)])
            model.own_optimizer = keras.optimizers.SGD(0.1)
            if is_built:
                model.own_optimizer.build(model.trainable_weights)
            model.compile(loss="mse", run_eagerly=True)
        backup = keras.callbacks.BackupAndRestore(str(shared_tmp), delete_checkpoint=False)
        model.fit(x, np.ones([16, 8]), batch_size=8, epochs=epochs, callbacks=[backup], verbose=0)
        comm.barrier()
        return sorted(path.name for path in shared_tmp.glob("residual-*.npz"))

    keeps = HiTopK().share(topology).holders > 1
    if topology.rank == 0:  # as a kill before the first weights leaves it
        (shared_tmp / "residual-9.npz").write_bytes(b"")
    comm.barrier()
    assert fit(2) == (["residual-4.npz"] if keeps else [])
    assert "is lost" in caplog.text
    caplog.clear()
    fit(3)
    assert "is lost" not in caplog.text  # what was not sent has been found
