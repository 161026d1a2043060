"""Functions that are traced in one place and called in another: in steps, outside, by two strategies."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss

SIGNATURE = [tf.TensorSpec([None, 2])]


@pytest.fixture
def communicates(strategy):
    """A function of its own trace: in a step the sum over the workers, outside what it is given."""

    @tf.function(input_signature=SIGNATURE)
    def total(x):
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", x)

    return total


@pytest.mark.parametrize("first", ["outside", "in a step"])
def test_a_function_in_a_step_and_outside(topology, strategy, communicates, first):
    x, workers = tf.ones([1, 2]), topology.num_workers

    @tf.function
    def step(x):
        return strategy.run(communicates, (x,))

    def outside():
        np.testing.assert_array_equal(communicates(x), x)

    if first == "outside":
        outside()
    for _ in range(2):
        np.testing.assert_array_equal(step(x), workers * x)
        np.testing.assert_array_equal(strategy.run(communicates, (x,)), workers * x)
    if topology.rank == 0:  # alone: it must wait for nobody
        outside()


def test_a_loss_in_a_step_and_outside(topology, strategy):
    loss = keras.losses.MeanSquaredError()

    @tf.function(input_signature=SIGNATURE)
    def loss_of(x):
        return loss(tf.zeros_like(x), x)

    x = tf.ones([2, 2])
    assert float(loss_of(x)) == 1
    assert float(strategy.run(loss_of, (x,))) == pytest.approx(1 / topology.num_workers)
    assert float(loss_of(x)) == 1


def test_a_gradient_that_is_built_in_a_later_step(topology, strategy, communicates):
    """As of a layer that has been evaluated before it is trained."""
    x, workers = tf.ones([1, 2]), topology.num_workers
    strategy.run(communicates, (x,))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(communicates(x) ** 2)
        return tape.gradient(y, x)

    np.testing.assert_allclose(strategy.run(step, (x,)), 2 * workers**2 * x)


def test_two_strategies_have_traces_of_their_own(strategy):
    """What tells how many rows count is each strategy's."""
    other, extended = tss.SparseStrategy("torus2d"), []

    @tf.function(input_signature=SIGNATURE)
    def note(x):
        extended.append(tf.distribute.get_strategy().extended)
        return x

    for each in (strategy, other, strategy):
        each.run(note, (tf.ones([1, 2]),))
    assert len(extended) == (2 if strategy.num_replicas_in_sync > 1 else 1)


def test_two_strategies_in_one_function(topology, strategy):
    """Nothing orders their sums: both may be under way."""
    other = tss.SparseStrategy("torus2d")
    x, workers = tf.ones([1, 2]), topology.num_workers

    def total(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", x)

    @tf.function
    def both(x):
        return strategy.run(total, (x,)), other.run(total, (2 * x,))

    for _ in range(3):
        one, two = both(x)
        np.testing.assert_array_equal(one, workers * x)
        np.testing.assert_array_equal(two, 2 * workers * x)
