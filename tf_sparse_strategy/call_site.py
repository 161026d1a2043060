"""A collective's place in the program: its name, its order, and what it has moved.

Horovod pairs operations of different workers by name alone, so a name must be the same on every
worker, whatever each has traced before, and must not be in flight twice. A name here is

    <purpose>.<kind>.<function path>.<occurrence>

with the path of the functions being traced and a count per outermost graph: no process-wide counter
that a retrace, or an extra model on one worker, could put out of step. (No slashes: Horovod reads them
as name scopes and drops what stands before.) Eager calls, which block, are
numbered in order: workers that drifted apart stall by name instead of pairing unrelated tensors.

A name stays the same in each iteration of a `tf.while_loop`, whose iterations TensorFlow overlaps. Each
site in a graph therefore owns a small variable that is updated before and after the operation:
automatic control dependencies then order the iterations. The same variable counts calls and bytes.
"""

import collections
import re
import weakref
from typing import Callable

import tensorflow as tf

from tf_sparse_strategy.traffic import Bytes

# Eager names repeat after this many calls, so that Horovod's response cache is not flooded.
_EAGER_NAMES = 64


def _function_path(graph) -> tuple[object, str]:
    """(outermost function graph, 'outer.….inner' without TensorFlow's per-process numbers)."""
    names = []
    while True:
        name = re.sub(r"_\d+", "", getattr(graph, "name", None) or "graph")
        names.append(re.sub(r"[^a-zA-Z0-9_]", "", name))  # e.g. the brackets of <lambda>
        outer = getattr(graph, "outer_graph", None)
        if outer is None or not getattr(outer, "building_function", False):
            return graph, ".".join(reversed(names))
        graph = outer


def plain_variable_class() -> type:
    """The class of a variable made outside any scope.

    Calling it makes a variable of this worker alone wherever the caller stands: unlike `tf.Variable`,
    it asks no `strategy.scope()` and no `tf.function` being traced how to create it.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return type(tf.Variable(0, trainable=False))


class CallSites:
    """Names the collectives of one process and counts what they move."""

    def __init__(self):
        self._variable_class = plain_variable_class()
        self._occurrences = weakref.WeakKeyDictionary()
        self._eager_calls = 0
        self._eager_traffic = [0, 0, 0]
        self._graph_traffic = []

    def run(self, kind: str, purpose: str, cost, fn: Callable[[str], tf.Tensor]) -> tf.Tensor:
        """Runs `fn(name)` under this place's name, in order, and counts it.

        Args:
          kind: the operation, e.g. "all_reduce".
          purpose: what it is for, e.g. "gradients"; part of the name.
          cost: `Bytes` one call sends, or an int64 tensor [local, cross] where only the run knows.
          fn: issues the operation under the name it is given and returns its result tensor.
        """
        purpose = re.sub(r"[^a-zA-Z0-9_]", "_", purpose)
        if isinstance(cost, Bytes):
            cost = [cost.local, cost.cross]
        if tf.executing_eagerly():
            name = f"{purpose}.{kind}.eager.{self._eager_calls % _EAGER_NAMES}"
            self._eager_calls += 1
            moved = cost if isinstance(cost, list) else cost.numpy().tolist()
            self._eager_traffic = [a + b for a, b in zip(self._eager_traffic, [1, *moved])]
            return fn(name)
        graph, path = _function_path(tf.compat.v1.get_default_graph())
        counts = self._occurrences.setdefault(graph, collections.Counter())
        key = f"{purpose}.{kind}.{path}"
        name = f"{key}.{counts[key]}"
        counts[key] += 1
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return fn(name)  # TF1 graphs have no automatic control dependencies to lean on
        return self._run_in_order(name, cost, fn)

    def _run_in_order(self, name, cost, fn):
        with tf.init_scope(), tf.device("CPU:0"):
            traffic = self._variable_class([0, 0, 0], dtype=tf.int64, trainable=False)
        self._graph_traffic.append(traffic)
        with tf.device("CPU:0"):
            step = tf.concat([tf.ones([1], tf.int64), tf.cast(cost, tf.int64)], axis=0)
            before = traffic.assign_add(step, read_value=False)
        with tf.control_dependencies([before]):
            result = fn(name)
        with tf.control_dependencies([result]), tf.device("CPU:0"):
            traffic.assign_add(tf.zeros([3], tf.int64), read_value=False)
        return result

    def traffic(self) -> tuple[int, Bytes]:
        """(calls, bytes) this worker has issued and sent so far, eager and in graphs."""
        totals = list(self._eager_traffic)
        for variable in self._graph_traffic:
            totals = [a + int(b) for a, b in zip(totals, variable.numpy())]
        return totals[0], Bytes(local=totals[1], cross=totals[2])
