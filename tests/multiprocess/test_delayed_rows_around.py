"""Delayed rows: who may look at tables when, what delays nothing, and other options beside."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import embedding_models, oracle
from tests.multiprocess.delayed_runs import (
    LENGTH,
    VOCABULARY,
    WIDTH,
    adversarial,
    batches,
    compare,
    lazy_adam,
    one_table,
    pair,
    trained,
    zipf,
)
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.scheduling import eligible

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


@pytest.fixture(scope="module")
def expected(strategies):
    """Of `trained` without delayed rows."""
    return trained(strategies[0])[0]


def test_looking_within_an_epoch(strategies, expected, comm, shared_tmp):
    """It is refused, on one worker as on all, until all have synchronized; which changes nothing."""
    strategy, path = strategies[1], str(shared_tmp / "within.weights.h5")

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            checkpoint = tf.train.Checkpoint(model=self.model)
            if batch == 4:  # reads what the step before has written
                with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                    checkpoint.read(str(shared_tmp / "within"))
            if batch != 3:
                return
            slot = next(v for v in self.model.optimizer.variables if slices.of(v) is not None)
            looks = [
                self.model.get_weights,
                lambda: self.model.save_weights(path),
                lambda: checkpoint.write(path),
                lambda: slot.assign(slot),
            ]
            for look in looks if comm.topology.rank else [*looks, slot.numpy]:
                with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                    look()
            strategy.synchronize()
            self.model.save_weights(path)
            checkpoint.write(str(shared_tmp / "within"))

    delayed, _ = trained(strategy, callbacks=[Look()])
    oracle.assert_same(delayed, expected, rtol=0, atol=0)


def test_together_with_dear(comm, expected):
    """DeAR divides the dense variables' updates; slots of tables stay beside their tables."""
    delayed, waited = trained(tss.SparseStrategy(overlap=tss.overlap.DeAR(), delay_rows=True))
    assert waited
    oracle.assert_same(delayed, expected, rtol=0, atol=0)


def test_functions_within_eager_steps(comm):
    """DeAR has then gathered eagerly what the function reads."""
    results = []
    for options in ({}, {"overlap": tss.overlap.DeAR(), "delay_rows": True}):
        keras.utils.set_random_seed(5)
        strategy = tss.SparseStrategy(**options)
        with strategy.scope():
            model = embedding_models.start(one_table(tss.layers.ShardedEmbedding))
            model.compile(lazy_adam(), "mse")
            model.optimizer.build(model.trainable_variables)
        step = tf.function(model.train_step, autograph=False)
        for x, y in strategy.experimental_distribute_dataset(batches(zipf(12), shuffled=False)):
            strategy.run(step, args=((x, y),))
        strategy.synchronize()
        results.append(model.get_weights())
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_files_and_custom_loops(strategies, shared_tmp):
    """Another run goes on where an interrupted one has saved, and sees all that `fit` has delayed."""
    results = []
    for strategy, name in zip(strategies, ("without", "with"), strict=True):
        path = str(shared_tmp / f"{name}.keras")
        trained(strategy, data=adversarial(), callbacks=[keras.callbacks.ModelCheckpoint(path)])
        with strategy.scope():
            model = keras.models.load_model(path)
        model.fit(batches(zipf(20)), verbose=0)

        @tf.function(autograph=False)
        def step(x, y, strategy=strategy, model=model):
            strategy.run(model.train_step, args=((x, y),))

        for x, y in strategy.experimental_distribute_dataset(batches(zipf(12), shuffled=False)):
            step(x, y)
        results.append([*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# ---- what delays nothing ------------------------------------------------------------------------


def predicting(*rows):
    """The sum over all columns."""
    return keras.layers.Dense(1)(keras.layers.Concatenate()([keras.layers.Flatten()(x) for x in rows]))


def test_two_models_in_turns(strategies):
    """They share a table, whose rows wait for the optimizer of the one that was trained last."""
    results = []
    for strategy in strategies:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            shared, models = tss.layers.ShardedEmbedding(VOCABULARY + 1, WIDTH), []
            for _ in range(2):
                inputs = keras.Input((LENGTH,), dtype="int32")
                models.append(embedding_models.start(keras.Model(inputs, predicting(shared(inputs)))))
                models[-1].compile(lazy_adam(), "mse")
        for model in (*models, models[0]):
            model.fit(adversarial(), verbose=0)
        results.append([v.numpy() for m in models for v in (*m.variables, *m.optimizer.variables)])
    for delayed, expected in zip(*results[::-1], strict=True):
        np.testing.assert_array_equal(delayed, expected)


def test_a_table_of_a_model_within_the_model(strategies):
    def build(table):
        inputs, inner = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")
        rows = keras.Model(inner, table(VOCABULARY, WIDTH)(VOCABULARY - 1 - inner))
        return keras.Model(inputs, predicting(rows(inputs)))

    compare(strategies, build=build, data=adversarial())


def within_a_layer(table, function=lambda call: call):
    """A second lookup that no graph of layers shows."""

    class Again(keras.layers.Layer):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared

        @function
        def call(self, ids):
            return self.shared(ids)

    inputs, shared = keras.Input((LENGTH,), dtype="int32"), table(VOCABULARY, WIDTH)
    ids = VOCABULARY - 1 - inputs
    return keras.Model(inputs, predicting(shared(ids), Again(shared)(ids[:, 1:])))


def test_a_second_lookup_in_a_step(strategies):
    compare(strategies, build=within_a_layer, data=adversarial(), run_eagerly=True, delays=False)


def test_a_second_lookup_in_a_function(strategies):
    def build(table):
        return within_a_layer(table, tf.function(autograph=False))

    compare(strategies, build=build, data=adversarial(), run_eagerly=True, delays=False)
    with strategies[1].scope():
        model = build(tss.layers.ShardedEmbedding)
        model.compile(lazy_adam(), "mse", run_eagerly=True)
    model.evaluate(adversarial(), verbose=0)  # traces the function, which no training does again
    with pytest.raises(tf.errors.InvalidArgumentError, match="in a tf.function of its own"):
        model.fit(adversarial(), verbose=0)


def penalized(table):
    inputs = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(inputs, predicting(table(VOCABULARY, WIDTH, embeddings_regularizer="l2")(inputs)))


def test_scaled_losses_delay_nothing(strategies):
    """Keras's scaling optimizer updates no single rows: what brings waiting ones must not ask it to."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        compare(strategies, delays=False)
    finally:
        keras.config.set_dtype_policy(policy)


def test_the_reason_is_known(strategies):
    with strategies[1].scope():
        model = penalized(tss.layers.ShardedEmbedding)
        model.compile(lazy_adam(), "mse")
        model.optimizer.build(model.trainable_variables)
    tables, _, left_out = eligible.tables_of(model)
    assert tables == []
    assert ["regularizer" in reason for reason in left_out.values()] == [True]
