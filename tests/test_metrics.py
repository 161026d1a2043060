"""Counters and rates: pure arithmetic, and a counter that counts in graphs and out of them."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy import metrics
from tf_sparse_strategy.metrics import Counts, SchemeCounts
from tf_sparse_strategy.residual import State


def test_counts_add_and_subtract():
    before, after = Counts(1, 8, 3, 100, 7), Counts(4, 32, 9, 400, 21)
    assert after - before == Counts(3, 24, 6, 300, 14)
    assert before + (after - before) == after


def test_rates():
    workers = [Counts(4, 10, 8, 600, 200), Counts(4, 6, 8, 400, 0)]
    assert metrics.rates(workers, seconds=2.0) == {
        "samples_per_second": 8.0,
        "seconds_per_step": 0.5,
        "collectives_per_step": 2.0,
        "bytes_per_step": 300.0,
        "cross_bytes_per_step": 50.0,
        "worker_bytes_per_step": 200.0,
        "imbalance": 200.0 / 150.0,
    }


def test_rates_of_nothing():
    assert set(metrics.rates([Counts()], seconds=0.0).values()) == {0.0}


BATCHES = {
    "tensor": (tf.zeros([5, 2]), tf.zeros([5])),
    "dict": ({"x": tf.zeros([5, 2])},),
    "ragged": (tf.ragged.constant([[1], [], [2, 3], [4], []]),),
    "sparse": (tf.sparse.from_dense(tf.eye(5)),),
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("function", [False, True])
def test_rows_are_counted_from_the_data(kind, function):
    counter = metrics.StepCounter()

    def step(*args):
        counter.add(args, rows=None)

    run = tf.function(step) if function else step
    run(*BATCHES[kind])
    run(*BATCHES[kind])
    assert counter.read() == (2, 10)


def test_unknown_and_given_rows():
    counter = metrics.StepCounter()
    step = tf.function(
        lambda x: counter.add((x,), rows=None), input_signature=[tf.TensorSpec([None, 3])]
    )
    step(tf.zeros([7, 3]))
    counter.add((tf.zeros([7, 3]),), rows=tf.constant(2, tf.int64))
    assert counter.read() == (2, 9)


def test_calls_without_a_batch_are_no_steps():
    counter = metrics.StepCounter()
    counter.add((), rows=None)
    counter.add((tf.constant(1.0), tf.Variable(np.zeros(3)), "text"), rows=None)
    assert counter.read() == (0, 0)


def test_loops_count_every_iteration():
    counter = metrics.StepCounter()

    @tf.function
    def steps():
        for _ in tf.range(3):
            counter.add((tf.zeros([4, 1]),), rows=None)

    steps()
    assert counter.read() == (3, 12)


def test_graphs_of_tensorflow_1_are_left_alone():
    counter = metrics.StepCounter()
    with tf.Graph().as_default():
        counter.add((tf.zeros([4, 1]),), rows=None)
    assert counter.read() == (0, 0)


def test_scheme_rates_by_hand():
    """Two workers, sums of 100 elements; squares of gradients 9 + 7, of residuals 36 + 28."""
    before = [SchemeCounts((100, 50, 1, 1), beyond=5.0), SchemeCounts((100, 50, 2, 2), beyond=5.0)]
    after = [
        SchemeCounts((200, 53, 10, 37), passed=1.5, eps=0.25, beyond=7.0, sparse=0.75, changes=3.0),
        SchemeCounts((200, 53, 9, 30), passed=0.5, eps=0.25, beyond=7.0, sparse=0.75, changes=3.0),
    ]
    assert metrics.scheme_rates(before, after) == {
        "sparse_part": 0.75,
        "applied_density": 0.03,
        "residual_ratio": 2.0,
        "threshold_hits": 1.0,
        "eps": 0.25,
        "beyond_limit": 2.0,
        "scheme_changes": 3.0,
    }
    assert set(metrics.scheme_rates(before, before).values()) == {0.0}


def test_the_probe_notes_every_second_step_that_is_finite():
    probe = metrics.GradientProbe(every=2)
    state = State({})
    state.stage(tf.constant(True), residual=tf.constant([0.0, 3.0, 0.0]))

    @tf.function
    def step(gradient):
        probe.begin_step()
        probe.note(probe.due(), gradient, tf.constant([0.0, 5.0, 0.0]), state)

    for first in (1.0, 2.0, 3.0, float("inf")):
        step(tf.constant([first, 1.0, 0.0]))
    assert probe.read() == [3.0, 1.0, 5.0, 9.0]


def test_the_probe_counts_a_step_of_two_optimizers_once():
    probe = metrics.GradientProbe(every=2)

    @tf.function
    def step():
        probe.begin_step()
        for elements in (1, 10):
            probe.note(probe.due(), tf.ones([elements]), tf.ones([elements]), State({}))

    noted = []
    for _ in range(4):
        step()
        noted.append(probe.read()[0])
    assert noted == [0.0, 11.0, 11.0, 22.0]
