"""Delayed rows against the same training without: the same bits in tables, slots and logs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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
    pair,
    trained,
    zipf,
)  # fmt: skip
from tf_sparse_strategy.embedding.lookup import _Exchange
from tf_sparse_strategy.scheduling import table, updates
from tf_sparse_strategy.scheduling.split import Split

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


@pytest.fixture(scope="module")
def expected(strategies):
    """Of `trained` by default arguments, without delayed rows."""
    return trained(strategies[0])[0]


def same(ours, expected):
    return all(np.array_equal(ours[name], value) for name, value in expected.items())


def test_the_data_has_both_kinds_of_rows():
    """|prior| / |batch|, in the mean, so that neither part is empty."""
    global_batches = [set(ids.ravel()) for ids in np.split(zipf()[: (STEPS - 1) * BATCH], STEPS - 1)]
    consecutive = zip(global_batches, global_batches[1:], strict=False)
    assert 0.2 < np.mean([len(now & then) / len(now) for now, then in consecutive]) < 0.8


def test_lazy_adam(strategies, expected):
    delayed, waited = trained(strategies[1])
    assert waited > STEPS  # of 2 epochs
    assert delayed.keys() == expected.keys()
    assert same(delayed, expected)


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, tss.optimizers.Adagrad], ids=lambda k: k.__name__)
def test_other_optimizers(strategies, kind):
    compare(strategies, decaying(kind), epochs=1)


def test_several_steps_per_call_and_several_tables(strategies):
    """One of them with 16 bits on the wire, ragged ids, combined rows and fewer columns than workers."""

    def build(embedding):
        inputs = keras.Input((LENGTH,), dtype="int32")
        rows = embedding(VOCABULARY, WIDTH)(inputs)
        bag = embedding(VOCABULARY, 1, combiner="mean", wire_dtype="bfloat16")(inputs[:, :2])
        return keras.Model(inputs, keras.layers.Dense(1)(tf_concat([keras.layers.Flatten()(rows), bag])))

    tf_concat = keras.layers.Concatenate()
    compare(strategies, build=build, steps_per_execution=4, epochs=1)


ADVERSARIAL = [
    [[1, 2, 3], [1, 2, 3]],
    [[1, 2, 3], [3, 2, 1]],  # all prior
    [[4, 5, 6], [7, 8, 9]],  # none prior
    [[7, 0, 0], [4, 0, 0]],  # each is needed next by the other worker alone
    [[1, 1, 1], [1, 1, 1]],  # delayed in the step before the last
    [[4, 5, 6], [0, -1, 2]],  # counted from the end
    [[39, 9, 9], [9, 9, 9]],
    [[0, 0, 0]],  # one worker has no row
]


def test_adversarial_batches_eagerly(strategies):
    ids = np.concatenate(ADVERSARIAL).astype("int32")

    def plain(embedding):
        inputs = keras.Input((LENGTH,), dtype="int32")
        rows = keras.layers.Flatten()(embedding(VOCABULARY, WIDTH)(inputs))
        return keras.Model(inputs, keras.layers.Dense(1)(rows))

    data = batches(ids, batch=2, shuffled=False)
    compare(strategies, data=data, build=plain, run_eagerly=True)


# ---- what must not be left out ------------------------------------------------------------------


def without_guard(patch):
    patch.setattr(table.DelayedRows, "bring_if_among", lambda rows, ids: None)


def no_flush(patch):
    def forget(delayed):
        for rows in delayed._rows:
            if rows() is not None:
                rows()._waiting.assign(0)

    patch.setattr(updates.DelayedUpdates, "synchronize", forget)


def wrong_next_batch(patch):
    patch.setattr(updates.eligible, "flat", lambda ids: tf.reshape(ids + 1, [-1]) % VOCABULARY)


def wrong_next_batch_unnoticed(patch):
    wrong_next_batch(patch)
    without_guard(patch)


def next_batch_of_one_worker(patch):
    original = _Exchange._ids_of_all

    def ids_of_all(exchange, ids):
        found, counts = original(exchange, ids)
        first = len(exchange.requests)
        return found[:first] + [x[: counts[0][first + i]] for i, x in enumerate(found[first:])], counts

    patch.setattr(_Exchange, "_ids_of_all", ids_of_all)
    without_guard(patch)


def step_counted_twice(patch):
    original = table._at_step
    patch.setattr(table, "_at_step", lambda optimizer, step: original(optimizer, step + 1))


def live_learning_rate(patch):
    at_step, update, live = table._at_step, table._update, []

    def noted(optimizer, step):
        live.append(optimizer.learning_rate)
        return at_step(optimizer, step)

    patch.setattr(table, "_at_step", noted)
    patch.setattr(table, "_update", lambda o, v, g, rate: update(o, v, g, live.pop()))


def rows_without_gradient_moved(patch):
    patch.setattr(Split, "without_delayed", lambda split, gradient: gradient)


@pytest.mark.parametrize(
    "fault",
    [
        no_flush, wrong_next_batch_unnoticed, next_batch_of_one_worker, step_counted_twice,
        live_learning_rate, rows_without_gradient_moved,
    ],
    ids=lambda fault: fault.__name__,
)  # fmt: skip
def test_it_differs_with(strategies, expected, monkeypatch, fault):
    fault(monkeypatch)
    assert not same(trained(strategies[1])[0], expected)


def test_a_wrong_announcement_is_noticed(strategies, monkeypatch):
    """The lookup then applies the rows itself, here within layers that compute in 16 bits."""
    wrong_next_batch(monkeypatch)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        compare(strategies, epochs=1)
    finally:
        keras.config.set_dtype_policy(policy)
