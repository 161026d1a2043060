"""Collectives keep their partners in loops, branches, nested functions, and when one worker retraces."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.ranked_values import sum_of, value
from tf_sparse_strategy.topology import Group

GROUPS = list(Group)


@pytest.mark.parametrize("group", GROUPS)
def test_iterations_of_a_loop_do_not_overtake_each_other(comm, topology, group):
    """No iteration needs another's result: only the collective itself keeps them in order."""

    @tf.function
    def loop(x):
        def body(i, results):
            reduced = comm.all_reduce(x + 100.0 * tf.cast(i, tf.float32), group)
            return i + 1, results.write(i, reduced)

        results = tf.TensorArray(tf.float32, 20, element_shape=[3])
        _, results = tf.while_loop(lambda i, _: i < 20, body, [0, results], parallel_iterations=10)
        return results.stack()

    offsets = 100.0 * topology.size(group) * np.arange(20)[:, np.newaxis]
    expected = sum_of(topology, group, 3) + offsets
    np.testing.assert_array_equal(loop(value(topology.rank, 3)), expected)


def test_conditions_that_all_workers_take_alike(comm, topology):
    @tf.function
    def choose(x, which):
        return tf.cond(
            which,
            lambda: comm.all_reduce(x),
            lambda: comm.all_reduce(-comm.all_reduce(x, Group.LOCAL), Group.CROSS),
        )

    x, total = value(topology.rank, 5), sum_of(topology, Group.GLOBAL, 5)
    np.testing.assert_array_equal(choose(x, tf.constant(True)), total)
    if topology.is_uniform:
        np.testing.assert_array_equal(choose(x, tf.constant(False)), -total)


def test_nested_functions_called_twice(comm, topology):
    @tf.function
    def inner(x):
        return comm.all_reduce(x)

    @tf.function
    def outer(x):
        return inner(x), inner(2.0 * x), comm.all_reduce(3.0 * x)

    total = sum_of(topology, Group.GLOBAL, 4)
    for result, factor in zip(outer(value(topology.rank, 4)), (1, 2, 3), strict=True):
        np.testing.assert_array_equal(result, factor * total)


def test_one_worker_retraces(comm, topology):
    @tf.function(reduce_retracing=False)
    def step(x, scale):
        return comm.all_reduce(x * scale), comm.all_gather(x, Group.LOCAL)

    if topology.rank == 0:
        for other in (2, 3):
            step.get_concrete_function(tf.TensorSpec([9], tf.float32), other)
    # Python numbers: a trace for each; the ranks meet them in different order.
    for scale in (2, 5, 3):
        summed, local = step(value(topology.rank, 3), scale)
        np.testing.assert_array_equal(summed, scale * sum_of(topology, Group.GLOBAL, 3))
        parts = [value(rank, 3) for rank in topology.ranks(Group.LOCAL)]
        np.testing.assert_array_equal(local, np.concatenate(parts))


def test_one_worker_traces_an_extra_function(comm, topology):
    extra = tf.function(lambda x: comm.all_reduce(comm.all_reduce(x)))
    step = tf.function(lambda x: comm.all_reduce(x))
    if topology.rank == topology.num_workers - 1:
        extra.get_concrete_function(tf.TensorSpec([3]))
    x, total = tf.constant(value(topology.rank, 3)), sum_of(topology, Group.GLOBAL, 3)
    np.testing.assert_array_equal(step(x), total)
    np.testing.assert_array_equal(extra(x), topology.num_workers * total)


def test_one_worker_traces_the_inner_function_first(comm, topology):
    @tf.function
    def inner(x):
        return comm.all_reduce(x)

    @tf.function
    def outer(x):
        return inner(x)

    if topology.rank == 0:
        inner.get_concrete_function(tf.TensorSpec([3]))
    np.testing.assert_array_equal(
        outer(tf.constant(value(topology.rank, 3))), sum_of(topology, Group.GLOBAL, 3)
    )


def test_two_functions_of_one_name_in_one_step(comm, topology):
    """As two optimizers of one class and equal shapes make, the generator's and the critic's."""

    def make(factor):
        @tf.function
        def apply(x):
            return comm.all_reduce(factor * x, purpose="gradients")

        return apply

    generator, critic = make(2.0), make(3.0)

    @tf.function(reduce_retracing=False)
    def step(x):
        return generator(x), critic(x)

    if topology.rank == 0:  # retraced here alone, and with one of the two traced already
        critic.get_concrete_function(tf.TensorSpec([4]))
        step.get_concrete_function(tf.TensorSpec([4]))
    for n in (3, 4):
        total = sum_of(topology, Group.GLOBAL, n)
        first, second = step(tf.constant(value(topology.rank, n)))
        np.testing.assert_array_equal(first, 2 * total)
        np.testing.assert_array_equal(second, 3 * total)


def test_workers_are_ready_in_different_order(comm, topology):
    """Independent collectives of one step pair by name, whoever comes first."""

    def late(x, order):
        def wait(x):
            time.sleep(0.02 * order)
            return x

        return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)

    @tf.function
    def step(x):
        delayed = [late(x, (i + topology.rank) % 4) for i in range(4)]
        return [[comm.all_reduce((i + 1.0) * x, g) for g in GROUPS] for i, x in enumerate(delayed)]

    for i, of_groups in enumerate(step(tf.constant(value(topology.rank, 3)))):
        for group, result in zip(GROUPS, of_groups, strict=True):
            expected = (i + 1) * sum_of(topology, group, 3)
            np.testing.assert_array_equal(result, expected)


def test_mismatch_is_an_error_on_every_worker_and_horovod_survives(comm, topology, partners):
    mine = topology.rank == 0
    wrong = {
        "shape": lambda: comm.all_reduce(tf.zeros([4 if mine else 3])),
        "dtype": lambda: comm.all_reduce(tf.zeros([3], tf.float64 if mine else tf.float32)),
        "row": lambda: comm.all_gather(tf.zeros([2, 4 if mine else 3])),
        "broadcast": lambda: comm.broadcast(tf.zeros([4 if mine else 3])),
        "exchange": lambda: comm.all_to_all(tf.zeros([topology.num_workers, 4 if mine else 3])),
    }
    for collective in wrong.values():
        for run in (collective, tf.function(collective)):
            with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched"):
                run()
            total = comm.all_reduce(tf.constant(value(topology.rank, 3)))
            np.testing.assert_array_equal(total, sum_of(topology, Group.GLOBAL, 3))
