"""The order of samples: permutations as the seed says, for any number of workers, from any step."""

import collections
import doctest
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from datacache import order
from datacache.order import Order

SIZES = [(1, 1), (7, 10), (10, 10), (40, 8), (103, 10), (101, 1)]


@functools.cache
def traced(plan: Order, worker: int, workers: int):
    rows = order.rows_of(worker, workers, plan.batch_size)
    step = tf.TensorSpec([], tf.int64)
    return tf.function(lambda step: order.batch_ids(step, plan, rows)[0]).get_concrete_function(step)


def batches(plan: Order, epoch: int, worker: int = 0, workers: int = 1) -> list[np.ndarray]:
    ids = traced(plan, worker, workers)
    steps = plan.steps_per_epoch
    return [ids(tf.constant(s, tf.int64)).numpy() for s in range(epoch * steps, (epoch + 1) * steps)]


@pytest.mark.parametrize("shuffle", order.SHUFFLES)
@pytest.mark.parametrize(("samples", "batch"), SIZES)
def test_each_sample_once_per_epoch(samples, batch, shuffle):
    plan = Order(samples, batch, seed=3, shuffle=shuffle, fraction=0.3)
    epochs = [np.concatenate(batches(plan, epoch)) for epoch in range(4)]
    for seen in epochs:
        assert sorted(seen) == list(range(samples))
    if samples > 20:
        assert not np.array_equal(epochs[0], epochs[1])
        again = np.concatenate(batches(plan._replace(seed=4), 0))
        assert not np.array_equal(epochs[0], again)


@pytest.mark.parametrize("shuffle", order.SHUFFLES)
@pytest.mark.parametrize(("samples", "batch", "workers"), [(1, 1, 1), (17, 10, 3), (40, 8, 3), (103, 10, 2)])
@pytest.mark.parametrize("drop", [False, True])
def test_samples_of_steps_are_those_of_their_batches(samples, batch, workers, shuffle, drop):
    plan = Order(samples, batch, 3, shuffle, fraction=0.3, drop_remainder=drop)
    for epoch, worker in itertools.product((0, 2), range(workers)):
        parts, rows = batches(plan, epoch, worker, workers), order.rows_of(worker, workers, batch)
        steps = range(epoch * len(parts), (epoch + 1) * len(parts))
        for some in (slice(None), slice(1), slice(len(parts) // 2, None)):
            found = order.ids_of(steps[some], plan, rows)
            np.testing.assert_array_equal(found, np.concatenate(parts[some]))


@pytest.mark.parametrize("shuffle", order.SHUFFLES)
def test_dropped_remainders_rotate(shuffle):
    plan = Order(43, 10, seed=1, shuffle=shuffle, drop_remainder=True)
    counts = collections.Counter()
    for epoch in range(30):
        seen = np.concatenate(batches(plan, epoch))
        assert len(seen) == 40 == len(set(seen.tolist()))
        counts.update(seen.tolist())
    assert len(counts) == 43 and min(counts.values()) > 10


@pytest.mark.parametrize("shuffle", order.SHUFFLES)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_global_batches_do_not_depend_on_the_workers(workers, shuffle):
    plan = Order(103, 9, seed=2, shuffle=shuffle, fraction=0.5)
    for epoch in range(3):
        whole = batches(plan, epoch)
        parts = [batches(plan, epoch, worker, workers) for worker in range(workers)]
        for step, expected in enumerate(whole):
            got = np.empty_like(expected)
            for worker in range(workers):
                got[worker::workers] = parts[worker][step]
            np.testing.assert_array_equal(got, expected)


def owned(plan: Order, epoch: int) -> list[set]:
    """Samples of each of two workers in an epoch."""
    return [set(np.concatenate(batches(plan, epoch, w, 2)).tolist()) for w in range(2)]


def test_what_stays_with_a_worker():
    local = Order(400, 8, seed=1)
    assert owned(local, 0) == owned(local, 5)
    # A permutation, not the order of files, says which: both halves are about equally old.
    assert 0.3 < np.mean([sample < 200 for sample in owned(local, 0)[0]]) < 0.7
    everywhere = Order(400, 8, seed=1, shuffle="global")
    assert owned(everywhere, 0) != owned(everywhere, 1)


def test_an_exchange_moves_its_fraction():
    plan = Order(400, 8, seed=1, shuffle="exchange", fraction=0.25)
    for epoch in range(1, 7):
        before, after = owned(plan, epoch - 1)[0], owned(plan, epoch)[0]
        assert len(before) == len(after)
        # A quarter is dealt anew to two workers, so that about an eighth of the set changes hands.
        assert 0.05 * 400 < 2 * len(before - after) < 0.2 * 400
    first, last = owned(plan, 0)[0], owned(plan, 12)[0]
    assert 0.3 < len(first & last) / len(first) < 0.7  # forgotten


def test_exchanged_window_is_what_changes():
    plan = Order(103, 8, seed=5, shuffle="exchange", fraction=0.3)
    for epoch in range(1, 9):
        rows, before, after = (x.numpy() for x in order.exchanged_window(epoch, plan))
        assert sorted(before) == sorted(after)
        for at, samples in ((epoch - 1, before), (epoch, after)):
            for row in range(8):
                of_row = np.concatenate([b[row : row + 1] for b in batches(plan, at)])
                assert set(samples[rows == row]) <= set(of_row.tolist())


def test_permutations_are_uniform():
    """Every sample of a row comes first about equally often, whatever row and seed."""
    for seed in (0, 1, 2**32 - 1):
        plan = Order(80, 8, seed=seed)
        first = [order.member(tf.range(8, dtype=tf.int64), 0, e, plan).numpy() for e in range(300)]
        for row in np.array(first).T:
            counts = np.bincount(np.unique(row, return_inverse=True)[1], minlength=10)
            assert len(counts) == 10
            assert np.sum((counts - 30) ** 2 / 30) < 40  # chi-squared, 9 degrees: p = 1e-5


def test_permutations_are_those_of_the_seed():
    """A run that another version began would go on in another order: never without a new `memory.FORMAT`."""
    plan = Order(10, 5, seed=7)
    assert np.concatenate(batches(plan, 1)).tolist() == [2, 5, 7, 9, 6, 8, 3, 4, 1, 0]
    exchanged = plan._replace(shuffle="exchange", fraction=0.5)
    assert np.concatenate(batches(exchanged, 1)).tolist() == [2, 5, 7, 4, 6, 9, 0, 8, 1, 3]
    everywhere = plan._replace(shuffle="global")
    assert np.concatenate(batches(everywhere, 1)).tolist() == [4, 8, 7, 1, 3, 2, 6, 5, 0, 9]


def test_augment_seeds_are_each_samples_own():
    plan = Order(100, 10)
    ids = tf.constant([3, 4, 3], tf.int64)
    seeds = order.augment_seeds(ids, tf.constant(2, tf.int64), plan).numpy()
    assert seeds.dtype == np.int64 and seeds.shape == (3, 2)
    assert (seeds[0] == seeds[2]).all() and (seeds[0] != seeds[1]).any()
    assert (order.augment_seeds(ids, tf.constant(3, tf.int64), plan).numpy() != seeds).any()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Order(0, 5), "no samples"),
        (Order(5, 0), "batch_size=0"),
        (Order(5, 6, drop_remainder=True), "at most 5"),
        (Order(5, 1, shuffle="all"), "shuffle='all'"),
        (Order(5, 1, seed=-1), "seed=-1"),
        (Order(5, 1, seed=2**32), "32 bits"),
        (Order(5, 1, fraction=0), "fraction=0"),
    ],
)
def test_impossible_orders_are_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        order.check(plan)


def test_impossible_rows_are_refused():
    with pytest.raises(ValueError, match="worker=2"):
        order.rows_of(2, 2, 8)
    with pytest.raises(ValueError, match="each worker needs a row"):
        order.rows_of(0, 4, 3)


@pytest.mark.parametrize("start", range(0, 41))
def test_spans_finish_the_run(start):
    steps = []
    for span in order.spans(start, epochs=4, steps_per_epoch=10):
        at = span.start
        for epoch in range(span.initial_epoch, span.epochs):
            assert at // 10 == epoch
            steps += range(at, at + span.steps_per_epoch)
            at += span.steps_per_epoch
            assert at % 10 == 0  # Keras's epochs end where the data's do
    assert steps == list(range(start, 40))


def test_the_examples_of_the_module():
    assert doctest.testmod(order).failed == 0
