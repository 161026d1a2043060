"""Delayed rows: who may look at tables when, what delays nothing, and other options beside."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_sparse_strategy as tss
from tests.multiprocess import embedding_models, oracle
from tests.multiprocess.delayed_runs import (
    ADVERSARIAL,
    LENGTH,
    VOCABULARY,
    WIDTH,
    Waiting,
    adversarial,
    batches,
    compare,
    compiled,
    lazy_adam,
    one_table,
    pair,
    trained,
    zipf,
)
from tests.multiprocess.saving_models import interruption
from tests.thorough import thorough
from tf_sparse_strategy import legacy_keras
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
                lambda: slot.assign(tf.zeros(slot.shape)),
            ]
            for look in looks if comm.topology.rank else [*looks, slot.numpy]:
                with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                    look()
            strategy.synchronize()
            self.model.save_weights(path)
            checkpoint.write(str(shared_tmp / "within"))

    delayed, _ = trained(strategy, callbacks=[Look()])
    oracle.assert_same(delayed, expected, rtol=0, atol=0)


def test_a_step_of_ones_own_within_an_epoch(strategies):
    """In a callback: it reads and writes tables that are whole, and what was looked up early is old."""

    class Clip(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            def clip():
                for weights in self.model.trainable_variables:
                    weights.assign(tf.clip_by_value(weights.value, -0.2, 0.2))

            self.model.distribute_strategy.run(clip)

    at_once, delayed = (trained(strategy, callbacks=[Clip()]) for strategy in strategies)
    assert delayed[1]  # some waited, at other times
    oracle.assert_same(delayed[0], at_once[0], rtol=0, atol=0)


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


def two_tables(table):
    """Of the same ids."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    ids = VOCABULARY - 1 - inputs
    rows = [keras.layers.Flatten()(table(VOCABULARY, WIDTH)(ids)) for _ in range(2)]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))


def test_a_call_of_the_model_within_an_epoch(strategies):
    """It brings rows that it reads up to date, and no update of either table is lost."""
    results = []
    for strategy in strategies:

        class Call(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model(tf.constant(ADVERSARIAL[min(batch, 6)]))

        results.append(trained(strategy, build=two_tables, data=adversarial(), callbacks=[Call()])[0])
    oracle.assert_same(*results, rtol=0, atol=0)


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


def test_a_backup_is_gone_on_with(strategies, shared_tmp):
    """By another model, from the beginning of an epoch; in another step, the batch after is another one."""
    fitting, data = {"epochs": 3}, adversarial()

    def backup():
        return keras.callbacks.BackupAndRestore(str(shared_tmp / "backup"))

    whole, _ = trained(strategies[0], data=data, fitting=fitting)
    with pytest.raises(RuntimeError, match="interrupted"):
        cut = [backup(), interruption(keras, at_epoch=2)]
        trained(strategies[1], data=data, fitting=fitting, callbacks=cut)
    resumed, waited = trained(strategies[1], data=data, fitting=fitting, callbacks=[backup()])
    assert waited and all(len(value) == 1 for name, value in resumed.items() if name.startswith("log"))
    for name, value in whole.items():
        expected = value[-1:] if name.startswith("log") else value
        np.testing.assert_array_equal(resumed[name], expected, err_msg=name)


def test_an_id_out_of_range_and_another_training(strategies):
    """All workers are told of it, and what waited then arrives. (The step itself may count or not.)"""
    results = []
    for strategy in strategies:
        model = compiled(strategy)
        wrong = np.concatenate([*ADVERSARIAL[:3], np.full((2, LENGTH), -VOCABULARY - 9, "int32")])
        with pytest.raises(tf.errors.InvalidArgumentError, match="has rows 0 to"):
            model.fit(batches(wrong, batch=2, shuffled=False), verbose=0)
        strategy.synchronize()
        variables = (*model.variables, *model.optimizer.variables)
        results.append([v.numpy() for v in variables if len(v.shape) > 0])
        model.fit(adversarial(), verbose=0)
    for delayed, expected in zip(*results[::-1], strict=True):
        np.testing.assert_array_equal(delayed, expected)


# ---- what delays nothing ------------------------------------------------------------------------


def predicting(*rows):
    """The sum over all columns."""
    return keras.layers.Dense(1)(keras.layers.Concatenate()([keras.layers.Flatten()(x) for x in rows]))


@thorough
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


@thorough
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


def test_a_second_lookup_in_a_step(strategies, caplog):
    compare(strategies, build=within_a_layer, data=adversarial(), run_eagerly=True, delays=False)
    assert caplog.text.count("are updated at once: a step looks it up more than once") == 1


@thorough
def test_clipping_that_is_asked_for_later(strategies, caplog):
    results = []
    for strategy in strategies:
        model, waiting = compiled(strategy), Waiting()
        model.fit(adversarial(), verbose=0)
        model.optimizer.global_clipnorm = 0.01
        with strategy.scope():
            model.compile(model.optimizer, "mse")
        model.fit(adversarial(), verbose=0, callbacks=[waiting])
        assert waiting.batches == 0
        results.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
    for delayed, expected in zip(*results[::-1], strict=True):
        np.testing.assert_array_equal(delayed, expected)
    assert "LazyAdam(global_clipnorm=0.01) needs more than the row" in caplog.text


def test_tf_keras_delays_nothing_and_says_so(strategies, caplog):
    with strategies[1].scope():
        inputs = tf_keras.Input((LENGTH,), dtype="int32")
        rows = legacy_keras.ShardedEmbedding(VOCABULARY + 1, WIDTH)(inputs)
        outputs = tf_keras.layers.Dense(1)(tf_keras.layers.Flatten()(rows))
        model = tf_keras.Model(inputs, outputs)
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    model.fit(adversarial(), verbose=0)
    assert "updated at once: optimizers of tf_keras update whole tables" in caplog.text


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


def test_another_length_in_another_fit(strategies):
    """Of a Sequential, which takes any, whatever it was made for."""
    found = []
    for strategy in strategies:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            rows = tss.layers.ShardedEmbedding(VOCABULARY, WIDTH)
            layers = [rows, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input([LENGTH]), *layers])
            model.compile(lazy_adam(), "mse")
        for ids in (zipf(), np.tile(zipf(), [1, 2])):
            history = model.fit(batches(ids), verbose=0)
        found.append(oracle.outcome(model, history))
    oracle.assert_same(*found, rtol=0, atol=0)
