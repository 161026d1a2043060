"""Many steps, with messages, pauses and looks by chance: no hang, and the weights of plain training."""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import embedding_models, oracle

STEPS, VOCABULARY, BATCH = 2_000, 40, 6
PAUSE = 5e-3  # seconds, at most


class Chance(keras.callbacks.Callback):
    """Pauses this worker now and then, and lets all of them look.

    Args:
      seed: of what all workers do.
      rank: of this worker, which pauses by itself.
    """

    def __init__(self, seed, rank):
        super().__init__()
        self._common, self._own = np.random.default_rng(seed), np.random.default_rng([seed, rank])
        self.steps, self.looks = 0, 0

    def on_train_batch_begin(self, batch, logs=None):
        if self._own.random() < 0.1:
            time.sleep(PAUSE * self._own.random())

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self._common.random() < 0.03:
            self.model.distribute_strategy.synchronize()
            self.looks += np.isfinite(self.model.get_weights()[0]).all()


def build():
    """Two tables of other widths, and dense layers, of which DeAR makes several buckets."""
    inputs = keras.Input((3,), dtype="int32")
    tables = [tss.layers.ShardedEmbedding(VOCABULARY, width) for width in (5, 2)]
    rows = [keras.layers.Flatten()(table(inputs)) for table in tables]
    hidden = keras.layers.Dense(6, "tanh")(keras.layers.Concatenate()(rows))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, "tanh")(hidden)))


def trained(strategy, rank):
    """(weights and slots, what chance has done), after STEPS steps in epochs of chance's lengths."""
    keras.utils.set_random_seed(5)
    chance, common = Chance(1, rank), np.random.default_rng(2)
    with strategy.scope():
        model = embedding_models.start(build())
        schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 100, 0.9)
        model.compile(tss.optimizers.LazyAdam(schedule), "mse")
    for epoch in itertools.count():
        steps = min(int(common.integers(1, 120)), STEPS - chance.steps)
        if steps == 0:
            found = [*model.variables, *model.optimizer.variables]
            return {str(i): v.numpy() for i, v in enumerate(found)}, chance
        divided, fusion = strategy.extended.chunked, int(common.integers(1, 500))
        if divided is not None and epoch % 5 == 4:  # other buckets, and so other messages
            divided.of(model.optimizer).rebucket(fusion)
            model.make_train_function(force=True)
        ids = embedding_models.tokens(steps * BATCH - int(common.integers(0, BATCH)), 3, epoch, VOCABULARY)
        data = tf.data.Dataset.from_tensor_slices((ids, np.sin(ids.sum(axis=1, keepdims=True))))
        model.fit(data.shuffle(len(ids), seed=epoch).batch(BATCH), verbose=0, callbacks=[chance])
        if common.random() < 0.3:
            model.evaluate(data.take(BATCH).batch(BATCH), verbose=0)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("partners")
def test_steps_by_chance(comm):
    rank = comm.topology.rank
    expected, _ = trained(tss.SparseStrategy(), rank)
    ours, chance = trained(tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=100), delay_rows=True), rank)
    assert chance.steps == STEPS and chance.looks > STEPS // 50
    exact = comm.topology.num_workers == 2  # where a sum has one order
    oracle.assert_same(ours, expected, rtol=0 if exact else 1e-3, atol=0 if exact else 1e-3)
