"""A collective's place in the program: its name, its order, and what it has moved.

Horovod pairs operations of different workers by name alone, so a name must be the same on every
worker, whatever each has traced before, and must not be in flight twice. A name here is

    <purpose>.<kind>.<function>.<occurrence>

with the `tf.function` that the call stands in (and its loops and branches) and a count per trace of
it. Neither counters of the process nor callers enter: one worker may retrace, trace an extra model,
or trace an inner function before the outer one. (No slashes: Horovod reads them as name scopes and
drops what stands before.) Eager calls block, and are paired by their order: Horovod knows them by
the kind of operation only.

Names therefore recur: in each iteration of a `tf.while_loop`, whose iterations TensorFlow overlaps,
in each call of a function, and in functions of one name, such as two optimizers' `apply`. Each name
owns a small variable that is updated before and after the operation: automatic control dependencies
then put all operations of that name in program order, the same on every worker. The same variable
counts calls, their ends and bytes and, in what is traced while there are `timers`, sums the times of
start and end: the difference of two readings is what happened between them, and of one call exactly
when it began and ended; what has begun and not ended is what this worker waits in.
"""

import collections
import contextlib
import functools
import re
import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.traffic import Bytes


def _function_path(graph) -> tuple[object, str]:
    """(graph of the function being traced, 'function.loop.branch' without TensorFlow's numbers)."""
    names = []
    while True:
        name = re.sub(r"_\d+", "", getattr(graph, "name", None) or "graph")
        names.append(re.sub(r"[^a-zA-Z0-9_]", "", name))  # e.g. the brackets of <lambda>
        if not re.search("Cond|While", type(graph).__name__):
            return graph, ".".join(reversed(names))
        graph = graph.outer_graph


def graphs_being_traced() -> Iterator[tf.Graph]:
    """The graph that operations go to now, and those around it."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def refuse_gradient_of_branch() -> None:
    """Raises where a gradient through control flow is traced: TensorFlow can add no variables there."""
    if any(re.search("(Cond|WhileBody)Grad", type(graph).__name__) for graph in graphs_being_traced()):
        raise NotImplementedError(
            "TensorFlow cannot build a gradient through tf.cond, tf.switch_case or tf.while_loop of what "
            "communicates (synchronized BatchNormalization, ShardedEmbedding, all_reduce): compute it always "
            "and choose by tf.where, or choose and loop in Python."
        )


def _not_constant(x, calls):
    """`x`, by a way that TensorFlow cannot take for a constant; copies nothing but a scalar.

    Horovod's operations are not stateful, so that TensorFlow would run one on constants while
    it optimizes the graph, once, and reuse the result in every step.
    """
    with tf.device("CPU:0"):
        zero = tf.cast(tf.minimum(calls, 0), tf.int32)
    if x.shape.rank is None:  # of tf.numpy_function; it may be a scalar
        return tf.reshape(depending_on(tf.reshape(x, [-1]), zero), tf.shape(x))
    return x[tf.newaxis][zero] if x.shape.rank == 0 else depending_on(x, zero)


def depending_on(x: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    """`x` [n, ...] by a slice from `zero`, which is 0 without TensorFlow's knowing; copies nothing."""
    whole = x[zero:]
    whole.set_shape(x.shape)
    return whole


def _zero_of(first):
    """int64 [], 0, of the first element of a result, by a way that TensorFlow cannot know.

    Control dependencies keep no operation alive that has no state: where one worker alone ignores a
    result, it would not take part, and the others would wait for it.
    """
    is_set = tf.cast(first, tf.bool)
    return tf.reduce_sum(tf.minimum(tf.cast(is_set, tf.int64), 0))


@functools.cache
def _plain_class() -> type:
    """The class of a variable made outside any scope, where this must first be called."""
    with tf.init_scope(), tf.device("CPU:0"):
        return type(tf.Variable(0, trainable=False))


def plain_variable(value, device: str | None = None, **options) -> tf.Variable:
    """A variable of this worker alone: no `strategy.scope()` and no `tf.function` is asked how to make it.

    Args:
      value: its first; nothing of a function that is being traced.
      device: where it is; by default where the caller stands.
      **options: further arguments of `tf.Variable`.
    """
    with tf.init_scope(), tf.device(device) if device else contextlib.nullcontext():
        return _plain_class()(value, trainable=False, **options)


class CallSites:
    """Names the collectives of one process and counts what they move."""

    def __init__(self):
        _plain_class()  # here, outside of any scope
        self._occurrences = weakref.WeakKeyDictionary()
        self._eager_sites = collections.defaultdict(lambda: np.zeros(6, np.int64))
        self._graph_sites: dict[str, tf.Variable] = {}
        self.timers = 0  # who want functions traced from now on to read the clock: a call into Python each
        self.clock_start = time.time()  # Unix time, seconds, from which sites count microseconds

    def run(
        self, kind: str, purpose: str, cost, x: tf.Tensor, fn: Callable[[str, tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Runs `fn(name, x)` under this place's name, in order, and counts it.

        Args:
          kind: the operation, e.g. "all_reduce".
          purpose: what it is for, e.g. "gradients"; part of the name.
          cost: `Bytes` one call sends, or an int64 tensor [local, cross] where only the run knows.
          x: the operand; the operation's time starts when it is there.
          fn: issues the operation on the operand, under the name it is given.
        """
        purpose = re.sub(r"[^a-zA-Z0-9_]", "_", purpose)
        if isinstance(cost, Bytes):
            cost = [cost.local, cost.cross]
        if tf.executing_eagerly():
            name = f"{purpose}.{kind}.eager"
            moved = cost if isinstance(cost, list) else cost.numpy().tolist()
            site = self._eager_sites[name]
            site[:4] += np.array([1, *moved, self._microseconds()], np.int64)
            try:
                return fn(name, x)
            finally:
                site[4:] += np.array([self._microseconds(), 1], np.int64)
        refuse_gradient_of_branch()
        graph, path = _function_path(tf.compat.v1.get_default_graph())
        counts = self._occurrences.setdefault(graph, collections.Counter())
        key = f"{purpose}.{kind}.{path}"
        name = f"{key}.{counts[key]}"
        counts[key] += 1
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return fn(name, x)  # TF1 graphs have no automatic control dependencies to lean on
        return self._run_in_order(name, cost, x, fn)

    def _run_in_order(self, name, cost, x, fn):
        if name not in self._graph_sites:
            self._graph_sites[name] = plain_variable([0] * 6, "CPU:0", dtype=tf.int64)
        site = self._graph_sites[name]
        with tf.control_dependencies([x]), tf.device("CPU:0"):
            one, zeros = tf.ones([1], tf.int64), tf.zeros([2], tf.int64)
            begin = tf.concat([one, tf.cast(cost, tf.int64), self._now(site), zeros], axis=0)
            before = site.assign_add(begin, read_value=False)
        with tf.control_dependencies([before]), tf.device("CPU:0"):
            calls = site.read_value()[0]
        with tf.control_dependencies([before]):
            result = fn(name, _not_constant(x, calls))
            first = tf.reshape(result, [-1])[:1]  # where it is, so that no GPU sends all of it
        with tf.control_dependencies([result]), tf.device("CPU:0"):
            ended = one + _zero_of(first)
            end = tf.concat([tf.zeros([4], tf.int64), self._now(site), ended], axis=0)
            counted = site.assign_add(end, read_value=False)
        with tf.control_dependencies([counted]):  # or gradients' functions, which order nothing, drop it
            return tf.identity(result)

    def _now(self, site):
        """int64 [1], microseconds; 0 where times are not wanted.

        Not `tf.timestamp()`: TensorFlow runs all of these in program order, and with them all the
        collectives, one by one. Reading `site` keeps this from being taken for a constant.
        """

        if not self.timers:
            return tf.zeros([1], tf.int64)

        def read_clock(_):
            return np.array([self._microseconds()], np.int64)

        calls = site.read_value()[0]
        now = tf.numpy_function(read_clock, [calls], tf.int64, stateful=False)
        return tf.ensure_shape(now, [1])

    def _microseconds(self) -> int:
        return int((time.time() - self.clock_start) * 1e6)

    def sites(self) -> list[tuple[str, np.ndarray]]:
        """(name, int64 [calls, local bytes, cross bytes, sum of starts, of ends, ended calls]) of each place.

        Cumulative. Starts and ends are microseconds since `clock_start`. Eager calls of one kind
        and purpose are one place. May be called from any thread; costs some microseconds per place.
        """
        eager_sites = [(name, site.copy()) for name, site in list(self._eager_sites.items())]
        graph_sites = [
            # Not `site.numpy()`, which takes ten times as long.
            (name, tf.raw_ops.ReadVariableOp(resource=site.handle, dtype=tf.int64).numpy())
            for name, site in list(self._graph_sites.items())
        ]
        return eager_sites + graph_sites

    def in_flight(self) -> dict[str, tuple[int, int]]:
        """(number of calls, calls that have begun and not ended) of each place where there are any.

        Includes calls in graphs that failed: what would have counted their end did not run.
        """
        counted = {name: (int(site[0]), int(site[0] - site[5])) for name, site in self.sites()}
        return {name: calls for name, calls in counted.items() if calls[1]}

    def traffic(self) -> tuple[int, Bytes]:
        """(calls, bytes) this worker has issued and sent so far, eager and in graphs."""
        calls, local, cross, *_ = sum((site for _, site in self.sites()), np.zeros(6, np.int64))
        return int(calls), Bytes(local=int(local), cross=int(cross))
