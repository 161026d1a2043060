"""Sharded tables in tf_keras are whole tables: trained, saved and loaded as by one process."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from lars_pto.legacy_keras import LAMB
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import (
    VOCABULARY,
    assert_serves,
    dataset,
    start,
    tables_of,
    tokens,
    whole_state,
)
from tests.multiprocess.saving_models import assert_same_state, assert_the_first_is_asked
from tf_sparse_strategy.embedding import clipping
from tf_sparse_strategy.gradient_kinds import sum_of_squares
from tf_sparse_strategy.legacy_keras import LazyAdam, ShardedEmbedding, lookup_together

OPTIMIZERS = {
    "sgd": lambda: tf_keras.optimizers.SGD(0.1),
    "adam": lambda: tf_keras.optimizers.Adam(0.02, global_clipnorm=0.05),
    "lazy_adam": lambda: LazyAdam(0.02, clipnorm=0.05),
    "adamw": lambda: tf_keras.optimizers.AdamW(0.02, weight_decay=0.01, use_ema=True),
}


def dense_gradients(optimizer):
    """`optimizer`, given dense gradients: tf_keras clips rows of one id before it adds them up."""

    class DenseGradients(type(optimizer)):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            dense = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
            return super().apply_gradients(dense, *args, **kwargs)

    optimizer.__class__ = DenseGradients
    return optimizer


def two_tables(table):
    """Two widths, one narrower than there are workers; the other used twice, once with a mask."""
    ids = tf_keras.Input((3,), dtype="int32")
    wide, narrow = table(VOCABULARY, 5, mask_zero=True), table(VOCABULARY, 1)
    pooled = tf_keras.layers.GlobalAveragePooling1D()(wide(ids))
    other = wide((ids * 5 + 1) % VOCABULARY)
    parts = [pooled, tf_keras.layers.Flatten()(narrow(ids)), tf_keras.layers.Flatten()(other)]
    return tf_keras.Model(ids, tf_keras.layers.Dense(1)(tf_keras.layers.Concatenate()(parts)))


class Together(tf_keras.Model):
    """Two tables looked up by one exchange; built by `fit`, regularized."""

    def __init__(self, table):
        super().__init__()
        penalty = tf_keras.regularizers.L2(0.02)
        self.wide = table(VOCABULARY, 6, embeddings_regularizer=penalty)
        self.narrow = table(VOCABULARY, 1)
        self.out = tf_keras.layers.Dense(1)

    def call(self, ids):
        if type(self.wide) is ShardedEmbedding:
            rows = lookup_together([self.wide, self.narrow], [ids, ids])
        else:
            rows = [self.wide(ids), self.narrow(ids)]
        return self.out(tf.reshape(tf.concat(rows, axis=-1), [-1, 21]))


def experiment(optimizer, build=two_tables, rows=26):
    def run(scope):
        alone = scope is contextlib.nullcontext
        with scope():
            made = OPTIMIZERS[optimizer]()
            if alone and optimizer != "lazy_adam":
                made = dense_gradients(made)
            model = build(tf_keras.layers.Embedding if alone else ShardedEmbedding)
            model.compile(optimizer=made, loss="mse", metrics=["mae"])
        if not model.built:
            model.predict(dataset(8), verbose=0)
        start(model)
        history = model.fit(dataset(rows), epochs=2, verbose=0)
        predicted = model.predict(dataset(11, 6), verbose=0)
        logs = {f"log {k}": v for k, v in sorted(history.history.items())}
        return {**tables_of(model), **logs, "predicted": predicted}

    return run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_as_one_process(comm, strategy, optimizer):
    ours = oracle.compare(comm, strategy, experiment(optimizer, rows=74))  # 20 steps
    for value in ours.values():
        oracle.assert_identical(comm, value)


def test_a_model_of_ones_own(comm, strategy):
    oracle.compare(comm, strategy, experiment("sgd", Together))


def test_norms_of_own_columns_are_found(comm, partners, strategy, monkeypatch):
    def squares(gradients, table):
        return [sum_of_squares(g) for g in gradients]

    monkeypatch.setattr(clipping, "_squares", squares)
    with pytest.raises(AssertionError):
        oracle.compare(comm, strategy, experiment("adam"))


def test_tables_given_to_layers_that_are_looked_up_together(topology, strategy):
    """tf_keras sets them when a layer is called, which none of these is."""
    given = [np.arange(6, dtype="float32").reshape(3, 2), np.ones([5, 4], "float32")]
    with strategy.scope():
        layers = [ShardedEmbedding(*values.shape, weights=[values]) for values in given]

    def look():
        return [rows[0] for rows in lookup_together(layers, [tf.constant([1]), tf.constant([2])])]

    first, second = strategy.run(look)
    np.testing.assert_array_equal(first, [2, 3])
    np.testing.assert_array_equal(second, [1, 1, 1, 1])
    layers[0].set_weights([given[0] * 2])
    np.testing.assert_array_equal(strategy.run(layers[0], [tf.constant([1])]), [[4, 6]])  # nor again


def test_an_overflow_in_one_column(topology, partners, strategy):
    """The first worker's: nobody takes the step."""
    with strategy.scope():
        layer = ShardedEmbedding(3, 4, weights=[np.ones([3, 4], "float32")])
        layer(tf.constant([0]))
        inner = tf_keras.optimizers.SGD(0.1)
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0)
        optimizer.build(layer.trainable_variables)
    factor = tf.constant([np.inf, 1.0, 1.0, 1.0])

    def step(ids):
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_sum(layer(ids) * factor))
        gradients = tape.gradient(loss, layer.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    strategy.run(step, [tf.constant([1])])
    np.testing.assert_array_equal(layer.get_weights()[0], np.ones([3, 4]))
    assert float(optimizer.loss_scale) == 1.0


def build(table, seed, strategy=None):
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = two_tables(table)
        model.compile(optimizer=tf_keras.optimizers.Adam(0.05), loss="mse")
        model.optimizer.build(model.trainable_variables)
    return start(model, seed)


def wide_of(model):
    """The sharded layer of five columns."""
    return next(layer for layer in model.layers if getattr(layer, "output_dim", None) == 5)


def checkpoint(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


FORMATS = {  # name: (save, load)
    "m.weights.h5": (lambda m, path: m.save_weights(path), lambda m, path: m.load_weights(path)),
    "checkpoint": (
        lambda m, path: checkpoint(m).write(path),
        lambda m, path: checkpoint(m).read(path).assert_existing_objects_matched(),
    ),
}


@pytest.fixture(scope="module")
def trained(comm):
    """(the strategy, a model after two steps); the tests leave it as it is."""
    import tf_sparse_strategy as tss

    strategy = tss.SparseStrategy()
    model = build(ShardedEmbedding, 1, strategy)
    model.fit(dataset(16), epochs=1, verbose=0)
    return strategy, model


@pytest.mark.parametrize("name", FORMATS)
def test_files(comm, topology, trained, shared_tmp, name):
    """Of whole tables and slots, that other workers and one process load to the bit."""
    (strategy, model), (save, load), path = trained, FORMATS[name], str(shared_tmp / name)
    save(model, path)
    other = build(ShardedEmbedding, 2, strategy)
    load(other, path)
    expected = whole_state(model)
    assert_same_state(whole_state(other), expected)
    if topology.rank == 0:
        plain = build(tf_keras.layers.Embedding, 3)
        load(plain, path)
        assert_same_state(whole_state(plain), expected)
    comm.barrier()


def test_whole_models(comm, topology, trained, shared_tmp):
    (strategy, model), path = trained, str(shared_tmp / "model.keras")
    model.save(path)
    with strategy.scope():
        other = tf_keras.models.load_model(path)
    expected = whole_state(model)
    assert_same_state(whole_state(other), expected)
    assert sum(type(layer) is ShardedEmbedding for layer in other.layers) == 2
    assert other.count_params() == sum(w.size for w in model.get_weights())


def test_exported_models_hold_whole_tables(comm, topology, trained, shared_tmp):
    (_, model), path = trained, str(shared_tmp / "exported")
    expected = model.predict(tokens(), verbose=0)
    model.export(path)
    if topology.rank == 0:
        assert_serves(path, tf.constant(tokens()), expected)
    comm.barrier()


def test_exported_models_know_what_they_were_adapted_to(comm, topology, strategy, shared_tmp):
    words, numbers = np.array([["b"], ["a"], ["c"]]), np.array([[1.0], [2.0], [6.0]], "float32")
    with strategy.scope():
        text, size = tf_keras.Input([1], dtype="string"), tf_keras.Input([1])
        known, scaled = tf_keras.layers.StringLookup(), tf_keras.layers.Normalization()
        known.adapt(words)
        scaled.adapt(numbers)
        rows = tf_keras.layers.Flatten()(ShardedEmbedding(5, 3)(known(text)))
        model = tf_keras.Model([text, size], tf_keras.layers.Concatenate()([rows, scaled(size)]))
    expected, path = model.predict([words, numbers], verbose=0), str(shared_tmp / "exported")
    model.export(path)
    if topology.rank == 0:
        served = assert_serves(path, [tf.constant(words), tf.constant(numbers)], expected)
        assert len(np.unique(served[:, 0])) == 3  # not all words are unknown
    comm.barrier()


class Block(tf_keras.layers.Layer):
    """Its weights are ordered by which of its layers are trainable."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = (tf_keras.layers.Dense(4, activation="tanh") for _ in range(2))

    def call(self, x):
        return self.second(self.first(x))


def test_exported_models_with_frozen_layers_within_others(comm, topology, strategy, shared_tmp):
    with strategy.scope():
        ids = tf_keras.Input([3], dtype="int32")
        block = Block()
        model = tf_keras.Model(ids, block(ShardedEmbedding(VOCABULARY, 4)(ids)))
    block.first.trainable = False
    expected, path = model.predict(tokens(), verbose=0), str(shared_tmp / "exported")
    model.export(path)
    if topology.rank == 0:
        assert_serves(path, tf.constant(tokens()), expected)
    comm.barrier()


def test_a_legacy_file_is_where_a_training_begins(comm, topology, strategy, shared_tmp):
    def named(table):
        ids = tf_keras.Input([3], dtype="int32")
        return tf_keras.Model(ids, table(VOCABULARY, 6, name="words")(ids))

    path, plain = str(shared_tmp / "plain.h5"), named(tf_keras.layers.Embedding)
    plain.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in plain.get_weights()])
    if topology.rank == 0:
        plain.save_weights(path)
    comm.barrier()
    for options in ({}, {"by_name": True}, {"by_name": True, "skip_mismatch": True}):
        with strategy.scope():
            model = named(ShardedEmbedding)
        model.load_weights(path, **options)
        assert_same_state(model.get_weights(), plain.get_weights())


def test_a_checkpoint_read_before_there_are_tables(comm, trained, shared_tmp):
    (strategy, model), path = trained, str(shared_tmp / "early")
    source = wide_of(model)
    tf.train.Checkpoint(layer=source).write(path)
    comm.barrier()
    with strategy.scope():
        layer = ShardedEmbedding(VOCABULARY, 5)
        tf.train.Checkpoint(layer=layer).read(path)
        layer.build()
    np.testing.assert_array_equal(layer.get_weights()[0], source.get_weights()[0])


def test_weights_as_a_checkpoint(comm, topology, trained, shared_tmp):
    """tf_keras's other format, which the first worker writes while it asks the others."""
    (strategy, model), path = trained, str(shared_tmp / "weights")
    model.save_weights(path)
    other = build(ShardedEmbedding, 2, strategy)
    other.load_weights(path)
    assert_same_state(other.get_weights(), model.get_weights())


def test_weights_are_replaced_if_the_first_worker_may(comm, trained, shared_tmp, monkeypatch):
    (_, model), path = trained, shared_tmp / "weights"
    model.save_weights(str(path))
    comm.barrier()
    file = path.with_name("weights.index")
    assert_the_first_is_asked(comm, monkeypatch, file, lambda: model.save_weights(str(path), overwrite=False))


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_legacy_optimizers_are_refused(partners, strategy, name):
    with strategy.scope():
        refused = two_tables(ShardedEmbedding)
        refused.compile(optimizer=getattr(tf_keras.optimizers.legacy, name)(0.1, clipnorm=1.0), loss="mse")
    with pytest.raises(ValueError, match=rf"{name} cannot train the sharded table '.*legacy"):
        refused.fit(dataset(8), verbose=0)


def test_refusals(partners, trained, shared_tmp):
    strategy, model = trained
    with pytest.raises(NotImplementedError, match="legacy .h5"):
        model.save(str(shared_tmp / "model.h5"))
    with pytest.raises(NotImplementedError, match="legacy .h5"):
        model.save_weights(str(shared_tmp / "weights.h5"))
    with pytest.raises(AttributeError, match="its columns are on"):
        getattr(wide_of(model), "embeddings")  # noqa: B009, the access raises
    with strategy.scope():
        refused = two_tables(ShardedEmbedding)
        refused.compile(optimizer=LAMB(0.1), loss="mse")
    with pytest.raises(ValueError, match="cannot train the sharded table '.*embeddings"):
        refused.fit(dataset(8), verbose=0)


def test_weights_that_have_no_shape_are_not_counted(strategy):
    """As those of a vocabulary that is still to be learned."""
    with strategy.scope():
        lookup = tf_keras.layers.StringLookup()
        model = tf_keras.Sequential([tf_keras.Input([2], dtype="string"), lookup])
    assert model.count_params() == 0
