"""Saving and loading by less common ways: other functions, several files, remote paths, models built late."""

import copy
import pickle

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.multiprocess.saving_models import X, Y, assert_same_state, build, tree
from tf_sparse_strategy import saving

pytestmark = pytest.mark.usefixtures("partners")


def test_weights_are_loaded_as_soon_as_they_are_written(strategy, shared_tmp):
    """By the functions of `keras.saving`, without a barrier between."""
    one, other = build(keras3, strategy, seed=1), build(keras3, strategy, seed=2)
    keras3.saving.save_weights(one, shared_tmp / "m.weights.h5")
    keras3.saving.load_weights(other, shared_tmp / "m.weights.h5")
    assert_same_state(other.get_weights(), one.get_weights())


def test_weights_in_several_files(strategy, shared_tmp):
    one, other = build(keras3, strategy, seed=1), build(keras3, strategy, seed=2)
    one.save_weights(shared_tmp / "m.weights.h5", max_shard_size=1e-7)
    other.load_weights(shared_tmp / "m.weights.json")
    assert_same_state(other.get_weights(), one.get_weights())
    assert len(tree(shared_tmp)) > 2 and not any("partial" in name for name in tree(shared_tmp))


def test_weights_in_several_files_are_compared_by_all_of_them(strategy, shared_tmp):
    """The one that is named says only which these are."""
    model, path = build(keras3, strategy), shared_tmp / "m.weights.json"
    model.save_weights(shared_tmp / "m.weights.h5", max_shard_size=1e-7)
    strategy.extended.collectives.barrier()
    told = saving._fingerprint(str(path))
    assert told == saving._fingerprint(str(path))
    strategy.extended.collectives.barrier()
    last = shared_tmp / max(name for name in tree(shared_tmp) if name.endswith(".h5"))
    if strategy.topology.rank == 0:
        last.write_bytes(last.read_bytes() + b"x")
    strategy.extended.collectives.barrier()
    assert saving._fingerprint(str(path)) not in (told, saving._MISSING)
    strategy.extended.collectives.barrier()
    if strategy.topology.rank == 0:
        last.unlink()
    strategy.extended.collectives.barrier()
    assert saving._fingerprint(str(path)) == saving._MISSING


REMOTE = {
    "m.keras": tf_keras.Model.save,
    "m.weights.h5": tf_keras.Model.save_weights,
    "m.hdf5": lambda model, path: tf_keras.models.save_model(model, path),
}


@pytest.mark.parametrize("name", REMOTE)
def test_remote_paths_of_tf_keras(comm, strategy, shared_tmp, name):
    """Which it copies from a temporary file."""
    REMOTE[name](build(tf_keras, strategy), f"file://{shared_tmp}/{name}")
    comm.barrier()
    assert tree(shared_tmp) == [name]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_tf_keras(strategy, topology, copied):
    """By a file, which each worker writes for itself."""
    model = build(tf_keras, strategy)
    with strategy.scope():
        other = copied(model)
    assert_same_state(other.get_weights(), model.get_weights())


def test_an_archive_of_tf_keras(comm, strategy, topology, tmp_path, monkeypatch):
    """Which knows TensorFlow by another name."""
    monkeypatch.chdir(tmp_path)  # of each worker
    model = build(tf_keras, strategy)
    archive = tf_keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.call, [tf.TensorSpec([None, 4])])
    archive.write_out("archive")
    assert ("archive/saved_model.pb" in tree(tmp_path)) == (topology.rank == 0)
    if topology.rank == 0:
        with strategy.extended.alone():
            served = tf.saved_model.load("archive")
        np.testing.assert_allclose(served.serve(X), model(X), rtol=1e-5)
    comm.barrier()


def test_another_unzipped_model_on_another_disk(strategy, topology, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # of each worker
    build(keras3, seed=topology.rank).save("m", zipped=False)
    with strategy.scope(), pytest.raises(FileNotFoundError, match="is not the same"):
        keras3.models.load_model("m")


def test_a_checkpoint_waits_for_a_model_that_is_built_late(strategy, shared_tmp):
    def late(seed):
        keras3.utils.set_random_seed(seed)
        with strategy.scope():
            model = keras3.Sequential([keras3.layers.Dense(3), keras3.layers.Dense(1)])
            model.compile(keras3.optimizers.SGD(0.0), "mse")
        return model

    one, other = late(1), late(2)
    one.fit(X, Y, verbose=0)
    tf.train.Checkpoint(model=one).write(str(shared_tmp / "checkpoint"))
    tf.train.Checkpoint(model=other).read(str(shared_tmp / "checkpoint"))
    other.fit(X, Y, verbose=0)
    assert_same_state(other.get_weights(), one.get_weights())


def test_checkpoints_in_a_directory_of_each_worker(comm, strategy, topology, shared_tmp):
    """As programs for MultiWorkerMirroredStrategy have it: followers delete theirs."""
    own = shared_tmp if topology.rank == 0 else shared_tmp / f"worker_{topology.rank}" / "checkpoint"
    checkpoint = tf.train.Checkpoint(model=build(keras3, strategy))
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=1)
    manager.save()
    if topology.rank > 0:
        tf.io.gfile.rmtree(str(own))
    comm.barrier()
    manager.save()
    comm.barrier()
    assert tf.train.latest_checkpoint(str(shared_tmp)) == str(shared_tmp / "ckpt-2")


@pytest.mark.parametrize("managed", [False, True])
def test_a_handler_of_preemptions_is_refused(strategy, shared_tmp, managed):
    """Each worker's would save by itself."""
    kind = tf.distribute.experimental.PreemptionCheckpointHandler
    checkpoint = tf.train.Checkpoint(model=build(keras3, strategy))
    if managed:
        checkpoint = tf.train.CheckpointManager(checkpoint, str(shared_tmp), max_to_keep=1)
    with pytest.raises(NotImplementedError, match="would save alone"):
        kind(strategy.cluster_resolver, checkpoint, str(shared_tmp))


def test_that_iterators_are_the_first_workers_is_told(strategy, topology, shared_tmp, caplog):
    checkpoint = tf.train.Checkpoint(model=build(keras3, strategy), rows=iter(tf.data.Dataset.range(3)))
    checkpoint.write(str(shared_tmp / "checkpoint"))
    assert caplog.text.count("first one's iterator") == (topology.rank == 0)
