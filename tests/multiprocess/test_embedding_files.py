"""Files of divided tables: no worker holds a whole one on the way; each kind of store; a file that fails."""

import h5py
import keras
import numpy as np
import pytest

import tf_sparse_strategy as tss
from tests.multiprocess.divided_tables import MARGIN, ROWS, WIDTH, one_table, own_bytes, rise
from tf_sparse_strategy.embedding import files, slices, wholes

DRAWING = 40 << 20  # for what is drawn or dealt at a time


@pytest.mark.parametrize("initializer", [keras.initializers.RandomNormal, keras.initializers.GlorotNormal])
def test_no_worker_holds_its_columns_twice_while_they_are_made(partners, topology, strategy, initializer):
    """But the first, where it has to draw the whole."""
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(ROWS, WIDTH, initializer(seed=0))
        risen = rise(layer.build)
    own = 4 * slices.of(layer.weights[0]).values[0].shape.num_elements()
    draws_whole = initializer is keras.initializers.GlorotNormal and topology.rank == 0
    assert draws_whole or risen < own + DRAWING


def by_way_of_the_whole(store, key, variable):
    return slices.own(variable, store[key])


def test_no_worker_holds_a_whole_table(partners, comm, strategy, shared_tmp, monkeypatch):
    """Nor a whole slot."""
    whole, path, weights = 4 * ROWS * WIDTH, str(shared_tmp / "m.keras"), str(shared_tmp / "m.weights.h5")
    model = one_table(strategy, ROWS, WIDTH, momentum=0.9)
    assert own_bytes(model) < 0.6 * whole
    assert rise(model.get_weights) > whole  # the measure tells
    assert rise(lambda: model.save(path)) < MARGIN
    assert rise(lambda: model.save_weights(weights)) < MARGIN
    model.load_weights(weights)  # the first also frees what the variables began with
    by_rows = rise(lambda: model.load_weights(weights))
    monkeypatch.setattr(files, "read", by_way_of_the_whole)
    assert by_rows < rise(lambda: model.load_weights(weights)) - whole / 4
    comm.barrier()
    if comm.topology.rank == 0:
        (shared_tmp / "m.keras").unlink()
        (shared_tmp / "m.weights.h5").unlink()


@pytest.mark.parametrize(
    "dtype, max_shard_size, by_rows",
    [("float32", None, True), ("float16", None, True), ("bfloat16", None, False), ("float32", 1, False)],
)
def test_each_type_comes_back(strategy, topology, shared_tmp, monkeypatch, dtype, max_shard_size, by_rows):
    asked = []
    pass_rows = wholes.Wholes.pass_rows
    monkeypatch.setattr(
        wholes.Wholes, "pass_rows", lambda self, *args: asked.append(1) or pass_rows(self, *args)
    )
    model, other = (one_table(strategy, dtype=dtype) for _ in range(2))
    path = str(shared_tmp / ("model.weights.h5" if max_shard_size is None else "model.weights.json"))
    expected = model.get_weights()[0]
    other.set_weights([expected + 1])
    model.save_weights(path, max_shard_size=max_shard_size)
    other.load_weights(path)
    np.testing.assert_array_equal(other.get_weights()[0], expected)
    assert bool(asked) == (by_rows and topology.num_workers > 1 and topology.rank == 0)


def test_a_bfloat16_file_is_read_into_a_float32_table(strategy, shared_tmp):
    path = str(shared_tmp / "model.weights.h5")
    model, other = one_table(strategy, dtype="bfloat16"), one_table(strategy)
    model.save_weights(path)
    other.load_weights(path)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0].astype("float32"))


def test_tf_keras_and_plain_stores(strategy, shared_tmp, topology):
    """tf_keras hands over a group of its file; some stores are no files at all."""
    held = slices.of(one_table(strategy).weights[0])
    whole = held.slices.wholes.of(held)
    with h5py.File(shared_tmp / f"{topology.rank}.h5", "w") as file:
        for store in (file.create_group("vars"), {}):
            files.write(store, "0", held)
            np.testing.assert_array_equal(store["0"][:], whole)
            np.testing.assert_array_equal(files.read(store, "0", held), held.values[0])


def test_another_shape_is_refused(partners, strategy, shared_tmp):
    path = str(shared_tmp / "narrow.weights.h5")
    one_table(strategy, width=4).save_weights(path)
    model = one_table(strategy)
    before = model.get_weights()[0]
    with pytest.raises(ValueError, match=r"has shape \(13, 5\); got \(13, 4\)"):
        model.load_weights(path)
    np.testing.assert_array_equal(model.get_weights()[0], before)


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_file_that_fails_keeps_nobody_waiting(
    partners, topology, strategy, shared_tmp, monkeypatch, error
):
    """The others send all the same; the failure is told, and leaves the last file that was whole."""
    model, path = one_table(strategy, momentum=0.9), shared_tmp / "model.weights.h5"
    monkeypatch.setattr(wholes, "CHUNK", 10)  # several rows are still to come when the first fails
    model.save_weights(path)
    strategy.extended.collectives.barrier()
    saved = path.read_bytes()

    def full(dataset, where, value):
        raise error("no room")

    with monkeypatch.context() as patch:
        patch.setattr(h5py.Dataset, "__setitem__", full)
        if topology.rank == 0:
            with pytest.raises(error, match="no room"):
                model.save_weights(path)
        else:
            model.save_weights(path)
    assert model.get_weights()[0].any()  # workers are in step
    assert path.read_bytes() == saved
    assert [file.name for file in shared_tmp.iterdir()] == [path.name]
