"""Delayed rows: faults that change the result, so that a comparison shows them, and one that does not."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.delayed_runs import (
    VOCABULARY,
    adversarial,
    compare,
    decaying,
    pair,
    trained,
)
from tf_sparse_strategy.embedding import exchange
from tf_sparse_strategy.embedding.party import Alone, Node
from tf_sparse_strategy.scheduling import early, table, updates
from tf_sparse_strategy.scheduling.split import Split

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


def outcome(strategy):
    """(of `trained`, batches after which rows waited); eager, which is quick where there are few steps."""
    return trained(strategy, data=adversarial(), run_eagerly=True)


@pytest.fixture(scope="module")
def expected(strategies):
    """The outcome without delayed rows."""
    return outcome(strategies[0])[0]


def same(ours, expected):
    return all(np.array_equal(ours[name], value) for name, value in expected.items())


def test_it_is_the_same_without_faults(strategies, expected):
    delayed, waited = outcome(strategies[1])
    assert waited > 4
    assert delayed.keys() == expected.keys()
    assert same(delayed, expected)


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
    for party in (Alone, Node):

        def together(self, wanted, following, original=party.together):
            own = following if int(os.environ["HOROVOD_RANK"]) == 0 else [ids[:0] for ids in following]
            return original(self, wanted, own)

        patch.setattr(party, "together", together)
    without_guard(patch)


def step_counted_twice(patch):
    original = table.while_set
    patch.setattr(table, "while_set", lambda o, _iterations: original(o, _iterations=_iterations + 1))


def live_learning_rate(patch):
    at_step, update, live = table.while_set, table._update, []

    def noted(optimizer, **step):
        live.append(optimizer.learning_rate)
        return at_step(optimizer, **step)

    patch.setattr(table, "while_set", noted)
    patch.setattr(table, "_update", lambda o, v, g, rate: update(o, v, g, live.pop()))


def rows_without_gradient_moved(patch):
    patch.setattr(Split, "without_delayed", lambda split, gradient: gradient)


def early_rows_that_the_step_moves(patch):
    class Careless(Split):
        def __init__(self, ids, counts, rank, following, following_counts, rows):
            super().__init__(ids, counts, rank, following, following_counts, rows)
            none = Split(ids[:0], [0] * len(counts), rank, following, following_counts, rows)
            for name in ("early_ids", "early_counts", "own_early_ids"):
                setattr(self, name, getattr(none, name))

    patch.setattr(exchange, "Split", Careless)


def early_rows_before_the_delayed(patch):
    """The step reads the early rows before it applies what waits."""
    bring, store, later = table.DelayedRows.bring, early.EarlyRows.store, []

    def bring_and_store(rows, *args):
        while later:
            bring(later.pop())
        store(rows, *args)

    def bring_later(rows):
        in_step = getattr(rows.table.slices.delayed._step, "running", False)
        later.append(rows) if in_step else bring(rows)

    patch.setattr(table.DelayedRows, "bring", bring_later)
    patch.setattr(early.EarlyRows, "store", bring_and_store)


@pytest.mark.parametrize(
    "fault",
    [
        no_flush, wrong_next_batch_unnoticed, next_batch_of_one_worker, step_counted_twice,
        live_learning_rate, rows_without_gradient_moved, early_rows_that_the_step_moves,
        early_rows_before_the_delayed,
    ],
    ids=lambda fault: fault.__name__,
)  # fmt: skip
def test_it_differs_with(strategies, expected, monkeypatch, fault):
    fault(monkeypatch)
    assert not same(outcome(strategies[1])[0], expected)


def test_a_wrong_announcement_is_noticed(strategies, monkeypatch):
    """The lookup then applies the rows itself, here in layers that compute in 16 bits, and in a loop."""
    wrong_next_batch(monkeypatch)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        compare(strategies, decaying(keras.optimizers.SGD), data=adversarial(), steps_per_execution=2)
    finally:
        keras.config.set_dtype_policy(policy)
