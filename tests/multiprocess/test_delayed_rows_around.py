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
    batches,
    compare,
    decaying,
    pair,
    trained,
    zipf,
)
from tf_sparse_strategy.embedding import slices

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


def test_looking_within_an_epoch(strategies, comm, shared_tmp):
    """It is refused, on one worker as on all, until all have synchronized; which changes nothing."""
    strategy, path = strategies[1], str(shared_tmp / "within.weights.h5")

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch != 3:
                return
            slot = next(v for v in self.model.optimizer.variables if slices.of(v) is not None)
            looks = [
                self.model.get_weights,
                lambda: self.model.save_weights(path),
                lambda: tf.train.Checkpoint(model=self.model).write(path),
                lambda: slot.assign(slot),
            ]
            for look in looks if comm.topology.rank else [*looks, slot.numpy]:
                with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                    look()
            strategy.synchronize()
            self.model.save_weights(path)

    delayed, _ = trained(strategy, callbacks=[Look()], epochs=1)
    oracle.assert_same(delayed, trained(strategies[0], epochs=1)[0], rtol=0, atol=0)


def test_files_of_epochs_hold_everything(strategies, shared_tmp):
    """What an interrupted run has saved is where another one goes on."""
    paths = []
    for strategy, name in zip(strategies, ("without", "with"), strict=True):
        paths.append(str(shared_tmp / f"{name}.keras"))
        saved = keras.callbacks.ModelCheckpoint(paths[-1])
        trained(strategy, epochs=1, callbacks=[saved])
    results = []
    for strategy, path in zip(strategies, paths, strict=True):
        with strategy.scope():
            model = keras.models.load_model(path)
        model.fit(batches(zipf()), epochs=1, verbose=0)
        results.append([*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_together_with_dear(comm):
    """DeAR divides the dense variables' updates; slots of tables stay beside their tables."""
    compare(pair(overlap=tss.overlap.DeAR()), epochs=1)


def twice(table):
    inputs = keras.Input((LENGTH,), dtype="int32")
    shared = table(VOCABULARY, WIDTH)
    uses = [keras.layers.Flatten()(shared(ids)) for ids in (inputs, inputs[:, 1:])]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(uses)))


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def own_step(table):
    inputs = keras.Input((LENGTH,), dtype="int32")
    rows = keras.layers.Flatten()(table(VOCABULARY, WIDTH)(inputs))
    return OwnStep(inputs, keras.layers.Dense(1)(rows))


def penalized(table):
    inputs = keras.Input((LENGTH,), dtype="int32")
    rows = keras.layers.Flatten()(table(VOCABULARY, WIDTH, embeddings_regularizer="l2")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(rows))


@pytest.mark.parametrize(
    "settings",
    [
        {"build": twice},
        {"build": own_step},
        {"build": penalized},
        {"optimizer": decaying(tss.optimizers.LazyAdam, global_clipnorm=0.1)},
    ],
    ids=["twice", "own_step", "penalized", "clipped"],
)
def test_updated_at_once(strategies, settings):
    compare(strategies, delays=False, epochs=1, **settings)


def test_a_custom_loop_after_fit(strategies):
    """It knows of no next batch, and sees all that `fit` has delayed."""
    results = []
    for strategy in strategies:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = embedding_models.start(embedding_models.one_table(tss.layers.ShardedEmbedding))
            model.compile(tss.optimizers.LazyAdam(0.1), "mse")
        data = embedding_models.dataset()
        model.fit(data, epochs=1, verbose=0)

        @tf.function(autograph=False)
        def step(x, y, strategy=strategy, model=model):
            strategy.run(model.train_step, args=((x, y),))

        for x, y in strategy.experimental_distribute_dataset(data):
            step(x, y)
        results.append(model.get_weights())
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, expected)
