"""Names are the same whatever a worker traced before, and never in flight twice."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.call_site import CallSites
from tf_sparse_strategy.traffic import Bytes


class Worker:
    """A worker whose collectives only remember their names."""

    def __init__(self):
        self.sites = CallSites()
        self.names = []

    def reduce(self, x, purpose="gradients", cost=Bytes(local=3, cross=5)):  # noqa: B008
        def fn(name, x):
            self.names.append(name)
            return tf.identity(x)

        return self.sites.run("all_reduce", purpose, cost, x, fn)


@pytest.fixture
def worker():
    return Worker()


def step_of(worker):
    @tf.function(reduce_retracing=False)
    def step(x):
        return worker.reduce(x) + worker.reduce(x) + worker.reduce(x, "metrics")

    return step


def test_names_in_a_function(worker):
    step_of(worker)(tf.zeros([2]))
    assert worker.names == [
        "gradients.all_reduce.step.0",
        "gradients.all_reduce.step.1",
        "metrics.all_reduce.step.0",
    ]


def test_a_retrace_gives_the_same_names(worker):
    step = step_of(worker)
    step(tf.zeros([2]))
    first, worker.names[:] = list(worker.names), []
    step(tf.zeros([3]))
    assert worker.names == first


def test_what_else_was_traced_does_not_matter():
    plain, busy = Worker(), Worker()
    tf.function(lambda x: busy.reduce(x))(tf.zeros([2]))
    step_of(busy)(tf.zeros([2]))
    busy.names.clear()
    for worker in (plain, busy):
        step_of(worker)(tf.zeros([2]))
    assert busy.names == plain.names


def test_the_caller_does_not_matter():
    """An inner function keeps its trace: its names must suit every caller."""
    early, late = Worker(), Worker()
    for worker in (early, late):
        inner = tf.function(lambda x, worker=worker: worker.reduce(x))
        outer = tf.function(lambda x, inner=inner: inner(x))
        if worker is early:
            inner.get_concrete_function(tf.TensorSpec([2]))
        outer(tf.zeros([2]))
    assert early.names == late.names and len(late.names) == 1


def test_loops_and_branches_belong_to_their_function(worker):
    @tf.function
    def step(x):
        for _ in tf.range(2):
            x = worker.reduce(x)
        for _ in tf.range(2):
            x = worker.reduce(x)
        return tf.cond(x[0] > 0, lambda: worker.reduce(x), lambda: worker.reduce(x))

    step(tf.zeros([2]))
    assert worker.names == [
        "gradients.all_reduce.step.while_body.0",
        "gradients.all_reduce.step.while_body.1",
        "gradients.all_reduce.step.cond_true.0",
        "gradients.all_reduce.step.cond_false.0",
    ]


def test_characters_that_horovod_would_cut_off(worker):
    tf.function(lambda x: worker.reduce(x, "my/own purpose"))(tf.zeros([2]))
    worker.reduce(tf.zeros([2]), "my/own purpose")
    assert all(name.startswith("my_own_purpose.all_reduce.") for name in worker.names)
    assert not any(set(name) & set("/<> ") for name in worker.names)


def in_flight(run):
    """The most operations that `run(enter_and_leave)` had begun and not ended at any time."""
    active, most = [0], [0]

    def visit(x):
        active[0] += 1
        most[0] = max(most[0], active[0])
        time.sleep(0.01)
        active[0] -= 1
        return x

    def visit_op(x):  # not stateful, as TensorFlow would order it by itself
        return tf.ensure_shape(tf.numpy_function(visit, [x], x.dtype, stateful=False), x.shape)

    run(visit_op)
    return most[0]


def overlapping_loop(reduce):
    def body(i, out):
        return i + 1, out.write(i, reduce(tf.cast(i, tf.float32)))

    @tf.function
    def loop():
        out = tf.TensorArray(tf.float32, 10, element_shape=[])
        return tf.while_loop(lambda i, _: i < 10, body, [0, out], parallel_iterations=10)[1].stack()

    np.testing.assert_array_equal(loop(), np.arange(10))


def test_iterations_of_one_name_take_turns():
    sites = CallSites()

    def run(visit):
        overlapping_loop(lambda x: sites.run("k", "p", Bytes(), x, lambda _, x: visit(x)))

    assert in_flight(run) == 1


def test_different_names_do_not_wait_for_each_other():
    """Horovod fuses what is announced together; one by one, each would wait a cycle."""
    sites = CallSites()

    def run(visit):
        def step(x):
            return [sites.run("k", "p", Bytes(), x + i, lambda _, x: visit(x)) for i in range(8)]

        np.testing.assert_array_equal(tf.function(step)(tf.zeros([])), range(8))

    assert in_flight(run) > 1


def test_functions_of_one_name_take_turns():
    sites = CallSites()

    def run(visit):
        def make():
            @tf.function
            def apply(x):
                return sites.run("k", "p", Bytes(), x, lambda _, x: visit(x))

            return apply

        functions = [make() for _ in range(4)]
        tf.function(lambda x: [fn(x) for fn in functions])(tf.zeros([]))

    assert in_flight(run) == 1
    assert [name for name, _ in sites.sites()] == ["p.k.apply.0"]


def test_tensorflow_cannot_fold_the_operation_of_a_constant():
    """It would run the collective once, while optimizing the graph, and reuse the result."""
    sites = CallSites()

    def fn(_, x):
        # Pure as Horovod's operators are: nothing but its operand keeps it from being folded.
        return tf.reduce_sum(x)

    @tf.function
    def step():
        return sites.run("k", "p", Bytes(), tf.ones([3]), fn)

    graph = step.get_concrete_function().graph
    reduction = next(op for op in graph.get_operations() if op.type == "Sum")
    sources = {reduction}
    for _ in range(10):
        sources |= {tensor.op for op in sources for tensor in op.inputs}
    assert "ReadVariableOp" in {op.type for op in sources}
    assert float(step()) == 3.0


def test_traffic_counts_calls_and_bytes(worker):
    step = step_of(worker)
    for _ in range(2):
        step(tf.zeros([2]))
    worker.reduce(tf.zeros([2]))
    assert worker.sites.traffic() == (7, Bytes(local=21, cross=35))


def test_bytes_that_only_the_run_knows(worker):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        return worker.reduce(x, cost=tf.stack([tf.size(x, tf.int64), 0]))

    for n in (2, 7):
        step(tf.zeros([n]))
    worker.reduce(tf.zeros([1]), cost=tf.constant([1, 100], tf.int64))
    assert worker.sites.traffic() == (3, Bytes(local=10, cross=100))


@pytest.mark.parametrize("traced", [False, True])
def test_sites_tell_how_long_each_took(worker, traced):
    def slow(x):
        time.sleep(0.05)
        return x

    def call(x):
        def fn(_, x):
            return tf.ensure_shape(tf.numpy_function(slow, [x], x.dtype), x.shape)

        return worker.sites.run("k", "p", Bytes(local=1), x, fn)

    run = tf.function(call) if traced else call
    worker.sites.timers = 1
    before = time.time()
    for _ in range(3):
        run(tf.zeros([2]))
    elapsed = time.time() - before
    ((name, (calls, local, cross, starts, ends, ended)),) = worker.sites.sites()
    assert name == ("p.k.call.0" if traced else "p.k.eager")
    assert (calls, local, cross, ended) == (3, 1 * 3, 0, 3)
    assert 0.15 <= (ends - starts) / 1e6 <= elapsed
    assert 0 <= starts / 3e6 + worker.sites.clock_start - before <= elapsed


def test_variables_are_made_outside_of_the_function(worker):
    """Also under a strategy's scope, and in a function that may not make variables."""
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        step = step_of(worker)
        step(tf.zeros([2]))
        step(tf.zeros([3]))
    assert [int(values[0]) for _, values in worker.sites.sites()] == [2, 2, 2]


@pytest.mark.parametrize("traced", [True, False])
def test_what_is_in_flight(worker, traced):
    during = []

    def fn(name, x):
        def look(x):
            during.append(worker.sites.in_flight())
            if len(during) == 2:
                raise ValueError("the second call fails")
            return x

        return tf.ensure_shape(tf.numpy_function(look, [x], tf.float32), [2])

    def call(x):
        return worker.sites.run("k", "p", Bytes(local=1), x, fn)

    run = tf.function(call) if traced else call
    name = "p.k.call.0" if traced else "p.k.eager"
    run(tf.zeros([2]))
    assert worker.sites.in_flight() == {}  # and none, once it has ended
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="the second call fails"):
        run(tf.zeros([2]))
    run(tf.zeros([2]))
    failed = 1 if traced else 0
    assert during == [{name: (1, 1)}, {name: (2, 1)}, {name: (3, 1 + failed)}]
    assert worker.sites.in_flight() == ({name: (3, 1)} if traced else {})
