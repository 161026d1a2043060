"""Saving and loading of models and checkpoints: written once, restored everywhere."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess.saving_models import (
    X,
    assert_same_everywhere,
    assert_same_state,
    build,
    fit,
    state,
    tree,
)
from tf_sparse_strategy import keras_saving, saving


@pytest.fixture
def own_disk(tmp_path, monkeypatch):
    """Relative paths lead to this worker's own disk; temporary files to a directory beside it."""
    disk, temporary = tmp_path / "disk", tmp_path / "temporary"
    disk.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return disk


@pytest.fixture(scope="module")
def strategy(comm):
    """One for all tests, which leave it as it is."""
    return tss.SparseStrategy()


@pytest.fixture
def trained(keras, strategy, trained_models):
    """A model after two steps; the tests leave it as it is."""
    if keras not in trained_models:
        trained_models[keras] = build(keras, strategy)
        fit(trained_models[keras])
    return trained_models[keras]


@pytest.fixture(scope="module")
def trained_models():
    """By Keras."""
    return {}


def assert_pairs(comm, topology):
    """The workers' collectives still meet."""
    total = comm.all_reduce(tf.constant(topology.rank + 1), purpose="still_in_step")
    assert int(total) == sum(range(1, topology.num_workers + 1))


def assert_nothing_left():
    """No private copy of a worker that is not the chief; autograph's files are not ours."""
    left = tree(tempfile.tempdir)
    assert not [file for file in left if "__autograph" not in file], left


def model_paths(keras):
    names = ["model.keras", "model.h5"]
    return names + ["saved_model"] if keras.__name__ == "tf_keras" else names


def weight_paths(keras):
    return ["a.weights.h5"] + (["b.h5", "c"] if keras.__name__ == "tf_keras" else [])


def save_everything(keras, model):
    for path in model_paths(keras):
        model.save(path)
    for path in weight_paths(keras):
        model.save_weights(path)
    model.export("export")
    tf.train.Checkpoint(model=model).write("written")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save("saved")


@pytest.mark.parametrize("callers", ["all", "chief"])
def test_chief_writes_alone(keras, trained, comm, topology, own_disk, callers):
    if callers == "all" or topology.rank == 0:
        save_everything(keras, trained)
    assert_pairs(comm, topology)
    assert_nothing_left()
    if topology.rank:
        assert os.listdir(own_disk) == []
        return
    names = {name.split(".data-")[0].removesuffix(".index") for name in os.listdir(own_disk)}
    assert names == {
        *model_paths(keras),
        *weight_paths(keras),
        "export",
        "written",
        "saved-1",
        "checkpoint",
    }


def test_a_file_is_replaced_only_if_that_is_wanted(keras, trained, comm, topology, own_disk, monkeypatch):
    """Which the first worker alone is asked: others see a file, too, on a disk that all share."""
    monkeypatch.setattr("builtins.input", lambda *question: "n" if topology.rank == 0 else pytest.fail())
    paths = {"model.keras": trained.save, "model.h5": trained.save}
    paths |= {path: trained.save_weights for path in weight_paths(keras) if path.endswith(".h5")}
    for path, save in paths.items():
        (own_disk / path).write_bytes(b"mine")
        save(path, overwrite=False)
    assert_pairs(comm, topology)
    assert all((own_disk / path).read_bytes() == b"mine" for path in paths)


def test_all_write_without_the_hooks(keras, trained, own_disk, monkeypatch):
    for module in (saving, keras_saving):
        monkeypatch.setattr(module, "ours", lambda strategy: None)
    trained.save("model.keras")
    trained.save_weights("model.weights.h5")
    tf.train.Checkpoint(model=trained).write("written")
    assert {"model.keras", "model.weights.h5", "written.index"} <= set(os.listdir(own_disk))


def test_loads_in_one_process(keras, trained, topology, own_disk):
    predictions = trained.predict(X, verbose=0)  # of all workers together
    save_everything(keras, trained)
    if topology.rank:
        return
    for path in model_paths(keras):
        loaded = keras.models.load_model(path, compile=False)
        np.testing.assert_allclose(loaded.predict(X, verbose=0), predictions, rtol=1e-6)
        assert_same_state(loaded.get_weights(), trained.get_weights())
    for path in weight_paths(keras):
        other = build(keras, seed=1)
        other.load_weights(path)
        assert_same_state(other.get_weights(), trained.get_weights())
    other = build(keras, seed=1)
    tf.train.Checkpoint(model=other).read("written").expect_partial()
    assert_same_state(other.get_weights(), trained.get_weights())


def test_what_is_not_ours_is_untouched(keras, strategy, comm, topology, own_disk):
    if topology.rank == 1:
        model = build(keras, seed=1)
        model.save("alone.keras")
        keras.models.load_model("alone.keras")
        model.save_weights("alone.weights.h5")
        model.load_weights("alone.weights.h5")
        checkpoint = tf.train.Checkpoint(step=tf.Variable(3))
        with strategy.scope():
            checkpoint.read(checkpoint.write("step"))
        assert {"alone.keras", "alone.weights.h5", "step.index"} <= set(os.listdir(own_disk))
    assert_pairs(comm, topology)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_load_waits_for_the_chief(keras, strategy, trained, comm, topology, shared_tmp, suffix):
    path = shared_tmp / f"late_{keras.__name__}{suffix}"
    other = build(keras, strategy, seed=7)
    if topology.rank == 0:
        time.sleep(0.5)  # the others are long waiting
        trained.save_weights(path) if suffix == ".weights.h5" else trained.save(path)
    other.load_weights(path)
    assert_same_state(other.get_weights(), trained.get_weights())
    assert_same_everywhere(comm, other.get_weights())


def test_load_outside_the_scope_does_not_race_with_the_chief(keras, strategy, trained, topology, shared_tmp):
    model, weights = shared_tmp / f"{keras.__name__}.keras", shared_tmp / f"{keras.__name__}.weights.h5"
    trained.save(model)
    trained.save_weights(weights)
    other = build(keras, seed=1)
    loads = (lambda: keras.models.load_model(model), lambda: other.load_weights(weights))
    for load in loads:
        if topology.rank == 0:
            load()
        else:
            with pytest.raises(RuntimeError, match="outside strategy.scope.*may not have finished"):
                load()
    with strategy.scope():
        keras.models.load_model(model)
    loads[0]()  # complete now


def test_training_goes_on_where_it_was_saved(keras, strategy, comm, shared_tmp):
    model = build(keras, strategy)
    fit(model)
    file = str(shared_tmp / f"half_{keras.__name__}.keras")
    model.save(file)
    directory = str(shared_tmp / f"checkpoints_{keras.__name__}")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(directory + "/half")
    half = state(model)

    with strategy.scope():
        from_file = keras.models.load_model(file)
    assert_same_state(state(from_file), half)
    from_checkpoint = build(keras, strategy, seed=7)
    checkpoint = tf.train.Checkpoint(model=from_checkpoint, optimizer=from_checkpoint.optimizer)
    # On the others this is None, or not, as chance will have it: they need not wait to ask.
    checkpoint.restore(tf.train.latest_checkpoint(directory))
    for each in (model, from_file, from_checkpoint):
        fit(each)
    assert_same_state(state(from_file), state(model))
    assert_same_state(state(from_checkpoint), state(model))
    assert_same_everywhere(comm, state(model))


@pytest.mark.parametrize("in_scope", [False, True])
def test_checkpoint_manager(keras, strategy, comm, topology, shared_tmp, in_scope):
    model = build(keras, strategy)
    directory = str(shared_tmp / f"managed_{keras.__name__}_{in_scope}")
    with strategy.scope() if in_scope else contextlib.nullcontext():
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
        paths = []
        for _ in range(3):
            paths.append(manager.save())
    assert paths == [f"{directory}/ckpt-{i}" for i in (1, 2, 3)]
    assert manager.checkpoints == paths[1:] and manager.latest_checkpoint == paths[2]
    assert checkpoint.save_counter.numpy() == 3
    comm.barrier()
    assert sorted({name.split(".")[0] for name in os.listdir(directory)}) == [
        "checkpoint",
        "ckpt-2",
        "ckpt-3",
    ]
    other = build(keras, strategy, seed=7)
    again = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    restored = tf.train.CheckpointManager(again, directory, max_to_keep=2).restore_or_initialize()
    assert restored == paths[2]
    assert_same_state(other.get_weights(), model.get_weights())


def test_variables_of_each_worker_are_reduced(strategy, topology, shared_tmp, own_disk):
    with strategy.scope():
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    strategy.run(lambda: total.assign_add(10.0 * (topology.rank + 1)))
    expected = 10.0 * sum(range(1, topology.num_workers + 1))
    checkpoint = tf.train.Checkpoint(total=total)
    path = checkpoint.save(str(shared_tmp / "total"))
    total.assign(0.0)
    checkpoint.restore(path)
    assert float(total.read_value()) == pytest.approx(expected)
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("total/.ATTRIBUTES/VARIABLE_VALUE") == pytest.approx(expected)
    assert_nothing_left()


def test_asynchronous_checkpoints_are_refused(keras, trained, shared_tmp):
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    with pytest.raises(NotImplementedError, match="experimental_enable_async_checkpoint"):
        tf.train.Checkpoint(model=trained).save(str(shared_tmp / "async"), options=options)


def test_missing_file_fails_everywhere(keras, trained, comm, topology, own_disk):
    others = ", ".join(str(rank) for rank in range(1, topology.num_workers))
    trained.save_weights("model.weights.h5")
    tf.train.Checkpoint(model=trained).write("written")
    trained.save("model.keras")
    before = trained.get_weights()
    for load in (
        lambda: trained.load_weights("model.weights.h5"),
        lambda: tf.train.Checkpoint(model=trained).read("written"),
        lambda: load_in_scope(keras, trained, "model.keras"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"missing on worker\(s\) {others} of .*share"):
            load()
    assert_same_state(before, trained.get_weights())
    with pytest.raises((FileNotFoundError, ValueError, OSError)):
        trained.load_weights("nowhere.weights.h5")
    assert_pairs(comm, topology)


def load_in_scope(keras, model, path):
    with model.distribute_strategy.scope():
        return keras.models.load_model(path)


def test_another_file_of_that_name_fails_everywhere(keras, trained, topology, own_disk):
    mine = build(keras, seed=topology.rank)  # e.g. left by another run
    mine.save_weights("model.weights.h5")
    trained.save_weights("model.weights.h5")
    with pytest.raises(FileNotFoundError, match="not the same as on worker 0 on worker.*1"):
        trained.load_weights("model.weights.h5")


def test_failure_on_one_is_a_failure_on_all(strategy, topology, shared_tmp):
    (shared_tmp / "good").touch()

    def load(path):
        if topology.rank == 1:
            raise OSError("cannot read")

    error, text = (
        (OSError, "cannot") if topology.rank == 1 else (RuntimeError, "rank 1: OSError: cannot read")
    )
    with pytest.raises(error, match=text):
        saving.load_together(strategy.extended, str(shared_tmp / "good"), load)


def test_unfinished_file_does_not_replace_the_last(tmp_path):
    path = tmp_path / "model.keras"
    with saving.whole_file(path) as target, open(target, "w") as stream:
        stream.write("first")
    with pytest.raises(OSError), saving.whole_file(path) as target:
        with open(target, "w") as stream:
            stream.write("sec")
        raise OSError("disk full")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["model.keras"]


_SERVE = """
import json, sys
import numpy as np
import tensorflow as tf
x = np.array(json.loads(sys.argv[1]), "float32")
answers = {}
for path in sys.argv[2:]:
    loaded = tf.saved_model.load(path)
    serve = getattr(loaded, "serve", None) or loaded
    answers[path] = np.array(serve(x) if "export" in path else serve(x, training=False)).tolist()
assert not {"tf_sparse_strategy", "horovod"} & set(sys.modules)
print(json.dumps(answers))
"""


def test_a_saved_model_is_loaded_by_all(partners, strategy, topology, shared_tmp, own_disk):
    """Once it is written, and the same."""
    with strategy.scope():
        module = tf.Module()
        module.weights = tf.Variable([1.0, 2.0])
    tf.saved_model.save(module, str(shared_tmp / "module"))
    with strategy.scope():
        loaded = tf.saved_model.load(str(shared_tmp / "module"))
        traced = []  # as where a layer is built when a step is traced
        tf.function(lambda: traced.append(tf.saved_model.load(str(shared_tmp / "module"))))()
    for found in (loaded, *traced):
        assert found.weights.numpy().tolist() == [1, 2]
    if topology.num_workers == 1:
        return
    tf.saved_model.save(module, "module")  # on the first worker's disk
    with strategy.scope(), pytest.raises(FileNotFoundError, match="is missing on worker"):
        tf.saved_model.load("module")


def test_exports_are_served_without_us(strategy, topology, own_disk):
    import keras as keras3
    import tf_keras

    expected = {}
    for keras in (keras3, tf_keras):
        model = build(keras, strategy)
        predictions = model.predict(X, verbose=0)
        export, graph = f"{keras.__name__}_export", f"{keras.__name__}_saved_model"
        model.export(export)
        tf.saved_model.save(model, graph)
        paths = [export, graph] if keras is tf_keras else [export]
        if keras is tf_keras:
            model.save("tf_keras_model")
            paths.append("tf_keras_model")
        expected.update(dict.fromkeys(paths, predictions))
    assert_nothing_left()
    if topology.rank:
        assert os.listdir(own_disk) == []
        return
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD", "PYTHONPATH"))
    }
    served = subprocess.run(
        [sys.executable, "-c", _SERVE, json.dumps(X.tolist()), *expected],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode == 0, served.stderr[-3000:]
    answers = json.loads(served.stdout.splitlines()[-1])
    for path, predictions in expected.items():
        np.testing.assert_allclose(answers[path], predictions, rtol=1e-5, err_msg=path)
