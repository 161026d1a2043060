"""Delayed rows against the same training without: the same bits in tables, slots and logs."""

import keras
import numpy as np
import pytest

import tf_sparse_strategy as tss
from tests.multiprocess.delayed_runs import (
    BATCH,
    LENGTH,
    STEPS,
    VOCABULARY,
    WIDTH,
    batches,
    compare,
    decaying,
    lazy_adam,
    pair,
    zipf,
)

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


def test_the_data_has_both_kinds_of_rows():
    """|prior| / |batch|, in the mean, so that neither part is empty."""
    global_batches = [set(ids.ravel()) for ids in np.split(zipf()[: (STEPS - 1) * BATCH], STEPS - 1)]
    consecutive = zip(global_batches, global_batches[1:], strict=False)
    assert 0.2 < np.mean([len(now & then) / len(now) for now, then in consecutive]) < 0.8


@pytest.mark.parametrize("optimizer", [lazy_adam, decaying(keras.optimizers.SGD)], ids=["LazyAdam", "SGD"])
def test_epochs_with_validation(strategies, optimizer):
    fitting = {"epochs": 2, "validation_data": batches(zipf(7, seed=1), shuffled=False)}
    assert compare(strategies, optimizer, fitting=fitting) > STEPS


def test_several_tables_and_steps_per_call(strategies):
    """Three are looked up together, of which one updates all rows at once; another one has a 16-bit wire,
    combined rows and fewer columns than workers.
    """

    def build(embedding):
        inputs = keras.Input((LENGTH,), dtype="int32")
        rows = [keras.layers.Flatten()(embedding(VOCABULARY, w)(inputs)) for w in (WIDTH, 4)]
        bag = embedding(VOCABULARY, 1, combiner="mean", wire_dtype="bfloat16")(inputs[:, :2])
        at_once = embedding(VOCABULARY, 2, embeddings_regularizer="l2")(inputs)
        rows += [bag, keras.layers.Flatten()(at_once)]
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))

    compare(strategies, decaying(tss.optimizers.Adagrad), build, steps_per_execution=4)
