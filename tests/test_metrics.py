"""Counters and rates: pure arithmetic, and a counter that counts in graphs and out of them."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy import metrics
from tf_sparse_strategy.metrics import Counts


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
