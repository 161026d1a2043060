"""Runs with and without delayed rows that their tests share."""

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import embedding_models, oracle

VOCABULARY, WIDTH, LENGTH, BATCH, STEPS = 40, 5, 3, 6, 15
ADVERSARIAL = np.array(
    [
        [[1, 2, 3], [1, 2, 3]],
        [[1, 2, 3], [3, 2, 1]],  # all prior
        [[4, 5, 6], [7, 8, 9]],  # none prior
        [[7, 0, 0], [4, 0, 0]],  # each is needed next by the other worker alone
        [[1, 1, 1], [1, 1, 1]],  # delayed in the step before the last
        [[4, 5, 6], [0, VOCABULARY, 2]],  # row -1, which is the last one, as that of 0
        [[0, 9, 9], [9, 9, VOCABULARY]],
    ],
    "int32",
)


def pair(**options):
    """(a strategy that updates whole tables at once, one that delays rows)."""
    return tss.SparseStrategy(**options), tss.SparseStrategy(**options, delay_rows=True)


def zipf(rows=STEPS * BATCH - 5, seed=0):
    """int32 [rows, LENGTH]; the last batch has one row, which leaves other workers without."""
    return embedding_models.tokens(rows, LENGTH, seed, VOCABULARY)


def batches(ids, batch=BATCH, shuffled=True):
    """Batches of (ids, targets)."""
    targets = np.random.default_rng(1).normal(size=(len(ids), 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((ids, targets))
    return (dataset.shuffle(len(ids), seed=3) if shuffled else dataset).batch(batch)


def adversarial():
    """Batches of ADVERSARIAL, and at the end one with a single row."""
    return batches(np.concatenate([*ADVERSARIAL, ADVERSARIAL[0, :1]]), batch=2, shuffled=False)


def decaying(optimizer):
    """An optimizer whose learning rate is another one in each step."""
    return lambda: optimizer(keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.9))


lazy_adam = decaying(tss.optimizers.LazyAdam)


def one_table(table):
    """The ids are computed from the inputs."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    rows = keras.layers.Flatten()(table(VOCABULARY, WIDTH)(VOCABULARY - 1 - inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(rows))


class Waiting(keras.callbacks.Callback):
    """Counts the batches after which rows wait."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        delayed = self.model.distribute_strategy.extended.delayed
        self.batches += delayed is not None and delayed.are_waiting


def compiled(strategy, optimizer=lazy_adam, build=one_table, **compiling):
    """A model with the same weights under every strategy."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = embedding_models.start(build(tss.layers.ShardedEmbedding))
        model.compile(optimizer(), "mse", **compiling)
    return model


def trained(
    strategy, optimizer=lazy_adam, build=one_table, data=None, fitting=None, callbacks=(), **compiling
):
    """(weights, logs, slots and step count after `fit`; batches after which rows waited)."""
    model = compiled(strategy, optimizer, build, **compiling)
    waiting = Waiting()
    data = batches(zipf()) if data is None else data
    history = model.fit(data, verbose=0, callbacks=[waiting, *callbacks], **(fitting or {}))
    slots = {f"slot {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
    return oracle.outcome(model, history, **slots), waiting.batches


def compare(strategies, *args, delays=True, **kwargs):
    """To the bit, on any number of workers: sums are taken in the same order."""
    (without, none), (delayed, some) = (trained(s, *args, **kwargs) for s in strategies)
    assert none == 0
    assert (some > 0) == delays
    oracle.assert_same(delayed, without, rtol=0, atol=0)
    assert delayed.keys() == without.keys()
    return some
