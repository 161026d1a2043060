"""What the step under way in this thread has done to which variables, while it is traced or run."""

import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.call_site import graphs_being_traced
from tf_sparse_strategy.hooking import while_set

APPLIED_TWICE = (
    "overlap=DeAR: an optimizer is applied more than once in one strategy.run; weights are gathered when a "
    "run begins. Put the loop around strategy.run."
)


class Step(threading.local):
    """Knows whether a step is under way, what it began with, and what it has updated."""

    running = False  # whether a step is under way
    making = False  # whether the optimizer that is made is the inner one of another
    _begun: Sequence[Any] = ()  # the updates whose weights the step began by gathering
    _updated: Sequence[Any] = ()  # those that it has made since
    _graph = None

    def under_way(self, updates: list[Any]) -> AbstractContextManager[None]:
        """A step that began by gathering the weights of `updates`."""
        graph = tf.compat.v1.get_default_graph()
        return while_set(self, running=True, _begun=updates, _updated=[], _graph=graph)

    def has_updated(self, update: Any) -> bool:
        """Whether this step's update of these variables lies behind."""
        return update in self._updated

    def note_update(self, update: Any) -> None:
        """From now on the variables of `update` are behind."""
        self._updated.append(update)

    def check_update(self, update: Any) -> None:
        """Raises RuntimeError where `update` cannot take place in this step."""
        if update not in self._begun:
            raise RuntimeError(
                "overlap=DeAR: the optimizer was not built when this step was traced, so that the step does "
                "not gather its weights. Call optimizer.build(model.trainable_variables) before the first "
                "strategy.run, and apply gradients within strategy.run only."
            )
        if self.has_updated(update) or self._in_loop():
            raise RuntimeError(APPLIED_TWICE)

    def _in_loop(self) -> bool:
        within = itertools.takewhile(lambda graph: graph is not self._graph, graphs_being_traced())
        return any("While" in type(graph).__name__ for graph in within)
