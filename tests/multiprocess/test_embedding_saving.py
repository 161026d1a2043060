"""Sharded tables and their slots are saved whole: bit for bit what one process and any workers load."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.saving import saving_lib

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import (
    assert_serves,
    compiled,
    dataset,
    tokens,
    whole_state,
)
from tests.multiprocess.saving_models import (
    assert_same_state,
    assert_the_first_is_asked,
    interruption,
)
from tf_sparse_strategy.embedding import slices


def sharded(strategy, **kwargs):
    with strategy.scope():
        model = compiled(tss.layers.ShardedEmbedding, **kwargs)
        model.optimizer.build(model.trainable_variables)
    return model


def trained(strategy, **kwargs):
    model = sharded(strategy, **kwargs)
    model.fit(dataset(16), epochs=1, verbose=0)
    return model


def alone_state(model):
    return [v.numpy() for v in (*model.weights, *model.optimizer.variables)]


def loaded_alone(topology, comm, load):
    """What the first worker loads into plain Embeddings, outside the strategy; None on the others."""
    state = alone_state(load()) if topology.rank == 0 else None
    comm.barrier()
    return state


def test_all_replace_a_file_or_none(comm, strategy, shared_tmp, monkeypatch):
    """The first worker is asked alone; the others send their columns only if it saves."""
    model, path = sharded(strategy), shared_tmp / "model.weights.h5"
    assert_the_first_is_asked(comm, monkeypatch, path, lambda: model.save_weights(str(path), overwrite=False))


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, tss.optimizers.LazyAdam])
def test_weights_files(comm, topology, strategy, shared_tmp, optimizer):
    def make():
        return optimizer(0.05)

    model = trained(strategy, optimizer=make)
    expected, path = whole_state(model), str(shared_tmp / "model.weights.h5")
    model.save_weights(path)
    other = sharded(strategy, seed=2, optimizer=make)
    other.load_weights(path)
    assert_same_state(whole_state(other), expected)

    def load():
        plain = compiled(keras.layers.Embedding, seed=3, optimizer=make)
        plain.optimizer.build(plain.trainable_variables)
        plain.load_weights(path)
        return plain

    alone = loaded_alone(topology, comm, load)
    if alone is not None:
        assert_same_state(alone, expected)


def test_whole_models(comm, topology, strategy, shared_tmp):
    model = trained(strategy)
    expected, path = whole_state(model), str(shared_tmp / "model.keras")
    model.save(path)
    with strategy.scope():
        other = keras.models.load_model(path)
    assert_same_state(whole_state(other), expected)
    assert sum(slices.of(v) is not None for v in other.weights) == 2
    alone = loaded_alone(topology, comm, lambda: keras.models.load_model(path))
    if alone is not None:
        assert_same_state(alone, expected)
    more = [m.fit(dataset(16), epochs=1, verbose=0).history["loss"] for m in (model, other)]
    assert more[0] == more[1]


def test_whole_models_pass_by_the_disk(comm, strategy, shared_tmp, monkeypatch):
    """Keras keeps a file in memory where one worker's columns would fit; the file holds those of all."""
    asked = []
    sufficient = saving_lib.is_memory_sufficient
    monkeypatch.setattr(
        saving_lib, "is_memory_sufficient", lambda model: asked.append(sufficient(model)) or asked[-1]
    )
    model, path = sharded(strategy), str(shared_tmp / "model.keras")
    model.save(path)
    with strategy.scope():
        keras.models.load_model(path)
    divided = comm.topology.num_workers > 1
    assert asked == [not divided] * (1 + (comm.topology.rank == 0))


def test_exported_models_hold_whole_tables(comm, topology, strategy, shared_tmp):
    model, path = trained(strategy), str(shared_tmp / "exported")
    expected = model.predict(tokens(), verbose=0)
    model.export(path, verbose=False)
    if topology.rank == 0:
        assert_serves(path, tf.constant(tokens()), expected)
    comm.barrier()


def test_a_checkpoint_of_the_best_batch_is_of_all(comm, partners, strategy, shared_tmp):
    """Batches' losses differ between workers: rank 0's decides when all save."""
    asked, model = [], sharded(strategy)
    path = str(shared_tmp / "best.keras")
    options = {"monitor": "loss", "mode": "min", "save_best_only": True, "save_freq": 1}
    checkpoint = keras.callbacks.ModelCheckpoint(path, **options)
    checkpoint._set_monitor_op()  # which Keras (3.15) forgets before the first epoch has ended
    should = checkpoint._should_save_model
    checkpoint._should_save_model = lambda *args: asked.append(should(*args)) or asked[-1]
    model.fit(dataset(40), epochs=2, shuffle=False, callbacks=[checkpoint], verbose=0)
    oracle.assert_identical(comm, np.array(asked))
    assert 0 < sum(asked) < len(asked)


def test_a_callback_that_writes_a_legacy_file_fails_on_all(partners, strategy, tmp_path):
    """And not on the first worker alone, for whom the others would wait."""
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.h5"))
    with pytest.raises(NotImplementedError, match="Save it as .keras"):
        sharded(strategy).fit(dataset(16), callbacks=[checkpoint], verbose=0)


def test_exported_models_know_what_they_were_adapted_to(comm, topology, strategy, shared_tmp):
    """A vocabulary, and a mean and a variance, which configurations do not have, and a Lambda."""
    words, numbers = np.array([["b"], ["a"], ["c"]]), np.array([[1.0], [2.0], [6.0]], "float32")
    with strategy.scope():
        text, size = keras.Input([1], dtype="string"), keras.Input([1])
        known, scaled = keras.layers.StringLookup(), keras.layers.Normalization()
        known.adapt(words)
        scaled.adapt(numbers)
        ids = keras.layers.Lambda(lambda x: x + 0)(known(text))
        rows = keras.layers.Flatten()(tss.layers.ShardedEmbedding(5, 3)(ids))
        model = keras.Model([text, size], keras.layers.Concatenate()([rows, scaled(size)]))
    inputs = [tf.constant(words), tf.constant(numbers)]
    expected, path = model.predict(inputs, verbose=0), str(shared_tmp / "exported")
    model.export(path, verbose=False)
    if topology.rank == 0:
        loaded = tf.saved_model.load(path)
        served = loaded.serve(inputs)
        np.testing.assert_allclose(served, expected, rtol=1e-6, atol=1e-6)
        assert len(np.unique(served[:, 0])) == 3  # not all words are unknown
    comm.barrier()


def test_a_plain_file_is_loaded_by_any_number_of_workers(comm, topology, strategy, shared_tmp):
    path = str(shared_tmp / "plain.weights.h5")
    if topology.rank == 0:
        plain = compiled(keras.layers.Embedding, seed=4)
        plain.fit(dataset(16), epochs=1, verbose=0)
        plain.save_weights(path)
    comm.barrier()
    model = sharded(strategy, seed=5)
    model.load_weights(path)
    state = whole_state(model)
    if topology.rank == 0:
        assert_same_state(state, alone_state(plain))


def test_checkpoints(comm, topology, strategy, shared_tmp):
    model = trained(strategy)
    expected = whole_state(model)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(shared_tmp / "checkpoint"))
    other = sharded(strategy, seed=2)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    assert_same_state(whole_state(other), expected)

    def load():
        plain = compiled(keras.layers.Embedding, seed=3)
        plain.optimizer.build(plain.trainable_variables)
        tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).restore(path).assert_consumed()
        return plain

    alone = loaded_alone(topology, comm, load)
    if alone is not None:
        assert_same_state(alone, expected)


def test_get_and_set_weights(strategy):
    model = sharded(strategy)
    assert [w.shape for w in model.get_weights()[:2]] == [(13, 5), (13, 1)]
    values = [np.full_like(w, i + 0.5) for i, w in enumerate(model.get_weights())]
    model.set_weights(values)
    assert_same_state(model.get_weights(), values)
    assert model.count_params() == sum(v.size for v in values)
    with pytest.raises(ValueError, match=r"has shape \(13, 5\)"):
        model.set_weights([values[0][:, :1], *values[1:]])


def test_callbacks(strategy, shared_tmp):
    """What callbacks save in the midst of fit; a run resumed from a backup ends as the whole run."""

    def fit(model, *callbacks):
        return model.fit(dataset(16), epochs=3, verbose=0, callbacks=list(callbacks))

    def backup():
        return keras.callbacks.BackupAndRestore(str(shared_tmp / "backup"))

    model = sharded(strategy)
    path = str(shared_tmp / "best.keras")
    fit(model, keras.callbacks.ModelCheckpoint(path, save_best_only=True, monitor="loss"))
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(sharded(strategy), backup(), interruption(keras, at_epoch=2))
    resumed = sharded(strategy, seed=9)
    fit(resumed, backup())
    assert_same_state(whole_state(resumed), whole_state(model))
    with strategy.scope():
        best = keras.models.load_model(path)
    assert_same_state(best.get_weights(), model.get_weights())


def write_legacy(topology, comm, path, model):
    """As Keras's older versions wrote weights; the first worker alone."""
    legacy = keras.src.legacy.saving.legacy_h5_format
    if topology.rank == 0:
        with legacy.h5py.File(path, "w") as file:
            legacy.save_weights_to_hdf5_group(file, model)
    comm.barrier()


def named(table, width=5):
    ids = keras.Input([3], dtype="int32")
    rows = keras.layers.Flatten(name="flat")(table(13, width, name="words")(ids))
    return keras.Model(ids, keras.layers.Dense(1, name="last", kernel_initializer="ones")(rows))


def test_a_legacy_file_is_where_a_training_begins(comm, topology, strategy, shared_tmp):
    path, plain = str(shared_tmp / "plain.h5"), named(keras.layers.Embedding)
    plain.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in plain.get_weights()])
    write_legacy(topology, comm, path, plain)
    for options in ({}, {"by_name": True}, {"by_name": True, "skip_mismatch": True}):
        with strategy.scope():
            model = named(tss.layers.ShardedEmbedding)
        model.load_weights(path, **options)
        assert_same_state(model.get_weights(), plain.get_weights())


def test_a_legacy_file_of_other_tables(comm, partners, topology, strategy, shared_tmp):
    """One that has as many columns as a worker holds is another, too."""
    with strategy.scope():
        model = named(tss.layers.ShardedEmbedding, width=6)
    path, before = str(shared_tmp / "other.h5"), model.get_weights()
    write_legacy(topology, comm, path, named(keras.layers.Embedding, width=6 // topology.num_workers))
    with pytest.warns(UserWarning, match="mismatch in shape"):
        model.load_weights(path, by_name=True, skip_mismatch=True)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    with pytest.raises(ValueError, match="shape"):
        model.load_weights(path, by_name=True)


def test_a_class_that_a_copy_would_lose_is_not_exported(partners, strategy, tmp_path):
    class Own(keras.Model):
        def __init__(self, width):
            ids = keras.Input([3], dtype="int32")
            rows = keras.layers.Flatten()(tss.layers.ShardedEmbedding(50, 4)(ids))
            super().__init__(ids, keras.layers.Dense(width)(rows))

        def call(self, inputs):
            return keras.ops.softmax(super().call(inputs))

    with strategy.scope():
        model = Own(2)
    with pytest.raises(NotImplementedError, match="is of a class of its own"):
        model.export(str(tmp_path / "exported"), verbose=False)


def test_refusals(partners, strategy, shared_tmp):
    model = sharded(strategy)
    with pytest.raises(NotImplementedError, match="legacy .h5"):
        model.save(str(shared_tmp / "model.h5"))
    with strategy.scope(), pytest.raises(ValueError, match="exported outside of"):
        model.export(str(shared_tmp / "exported"))
    with pytest.raises(AttributeError, match="its columns are on"):
        getattr(model.layers[1], "embeddings")  # noqa: B009, the access raises
