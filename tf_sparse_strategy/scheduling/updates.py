"""All delayed rows of one strategy: which tables have some, in which step, and until when."""

import contextlib
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import keras_callers
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.scheduling import eligible
from tf_sparse_strategy.scheduling.split import Split
from tf_sparse_strategy.scheduling.table import DelayedRows


class Announced:
    """What the next batch reads of one table.

    Args:
      ids: this worker's, [n].
      graph: that the step is traced into.

    Attributes:
      lookups: of the table in this step, so far.
      split: of the last of them.
      read_early: gives (ids, rows) that the next lookup may have already. Collective.
    """

    def __init__(self, ids: tf.Tensor, graph: Any):
        self.ids, self.graph = ids, graph
        self.lookups, self.split, self.read_early = 0, None, None


class _Step(threading.local):
    """Of the thread: the step that it is in."""

    model = None  # that it trains by Keras's own step
    announced = types.MappingProxyType({})  # in a step, by the table's id: `Announced`
    reason = None  # in a step, why no table's rows are delayed
    received = None  # in a step, what arrives before its delayed rows leave
    applying = False  # whether it applies delayed rows


class DelayedUpdates:
    """Takes rows that the next batch does not read out of gradients, and applies them in the next step.

    Args:
      step: of the thread; its `running` is true while a step runs in it.
    """

    def __init__(self, step: threading.local):
        self._step = step
        self._rows: list[weakref.ref] = []  # in the order of first lookups, the same on all workers
        self._plans = weakref.WeakKeyDictionary()  # model: (optimizer, ids of what it trains, tables, ids)
        self._told: set[tuple[str, str]] = set()  # (tables, reason) of which the log knows
        self._local = _Step()

    def of(self, table: Any) -> DelayedRows:
        """The delayed rows of a slice."""
        table = slices.of(table)
        if table.delayed_rows is None:
            table.delayed_rows = DelayedRows(table, self._applying)
            self._rows.append(weakref.ref(table.delayed_rows))
        return table.delayed_rows

    def take_optimizer(self, optimizer: Any, variables: list) -> None:
        """Notes that `optimizer` is being built on `variables`."""
        for variable in variables:
            if slices.of(variable) is not None:
                rows = self.of(variable)
                if tf.executing_eagerly():
                    if rows.are_waiting:
                        gc.collect()  # as below: all know the same optimizers
                    rows.bring()
                rows.take_optimizer(optimizer)

    # ---- a step ---------------------------------------------------------------------------------

    def running(self, fn: Callable) -> contextlib.AbstractContextManager:
        """While this lasts, `fn` runs: for what it trains, if it is Keras's own step, rows may be delayed."""
        return while_set(self._local, model=keras_callers.trained_model(fn))

    @contextlib.contextmanager
    def step_under_way(self, following: Any, weights: list[tf.Tensor] | None) -> Iterator[None]:
        """A step, after which this worker's inputs will be `following`; None if that is not known.

        Its delayed rows are to leave after `weights` have arrived.
        """
        model, announced, reason = self._local.model, {}, None
        if model is None:
            reason = "the train_step is not keras.Model's own"
            if tf.executing_eagerly():
                self.synchronize()  # in a callback of `fit` it would find, and leave, tables behind
        elif following is None:
            reason = "the next batch is known in `fit` only, of data that it distributes itself"
        else:
            announced = self._announced(model, following)
        with while_set(self._local, announced=announced, reason=reason, received=list(weights or [])):
            yield

    def _announced(self, model, following):
        trained = [id(variable) for variable in model.trainable_variables]
        optimizer, known, tables, ids_of = self._plans.get(model, (None, [], [], None))
        if optimizer is None or optimizer() is not model.optimizer or known != trained:
            tables, ids_of, left_out = eligible.tables_of(model)
            if model.optimizer.built:
                self._plans[model] = weakref.ref(model.optimizer), trained, tables, ids_of
            for name, reason in left_out.items():
                self.tell(reason, name)
        if not tables:
            return {}
        if reason := eligible.optimizer_reason(model.optimizer):  # it may have been told to clip since
            self.tell(reason)
            return {}
        graph, announced = tf.compat.v1.get_default_graph(), {}
        ids = tf.nest.flatten(ids_of.call(following), expand_composites=False)
        for table, x in zip(tables, map(eligible.flat, ids), strict=True):
            if reason := self.of(table).reason_against(model.optimizer):
                self.tell(reason, table.name)
            else:
                announced[id(table)] = Announced(x, graph)
        return announced

    def tell(self, reason: str, tables: str = "all tables") -> None:
        """Logs why rows of `tables` are not delayed; each reason once."""
        if (tables, reason) not in self._told:
            self._told.add((tables, reason))
            logging.warning("delay_rows: all rows of %s are updated at once: %s.", tables, reason)

    def announced(self, table: Any) -> Announced | None:
        """What the next batch reads of the slice `table`, where a lookup can use that."""
        found = self._local.announced.get(id(slices.of(table)))
        if found is None or found.graph is tf.compat.v1.get_default_graph():
            return found
        # In a function that the step calls, a loop or a branch; such a function is not always traced again.
        found.lookups += 1
        self.of(table).looked_up_within = True
        return None

    def note_arrival(self, received: list[tf.Tensor]) -> None:
        """The step's delayed rows are to leave after these have arrived: what the forward pass waits for."""
        if self._local.received is not None:
            self._local.received += received

    @tf.autograph.experimental.do_not_convert
    def delay(self, pairs: list, gradients: list) -> list:
        """Takes the rows that wait out of sums; applies those of the last step.

        Args:
          pairs: `[(summed gradient, variable), …]`.
          gradients: before they were summed.

        Returns:
          The same pairs, with fewer rows in gradients of tables.
        """
        graph = tf.compat.v1.get_default_graph()
        received = self._local.received or []
        # What arrived in an eager step that has called this function is there.
        arrived = [x for x in received if tf.is_symbolic_tensor(x) and x.graph is graph]
        reason = self._local.reason
        if reason is not None and any(slices.of(v) is not None for _, v in pairs):
            self.tell(reason)
        return [
            (self._delayed(own, g, v, arrived) if slices.of(v) is not None else g, v)
            for own, (g, v) in zip(gradients, pairs, strict=True)
        ]

    def _delayed(self, own, gradient, variable, arrived):
        rows, announced = self.of(variable), self.announced(variable)
        split: Split | None = None if announced is None else announced.split
        if announced is not None and announced.lookups > 1:
            self.tell("a step looks it up more than once", variable.name)
        is_split = split is not None and split.delayed_rows is not None and gradient is not None
        with tf.control_dependencies(arrived):
            rows.bring()
            if not is_split:
                rows.early.drop()
                return gradient
            rows.early.store(*announced.read_early())
        if not isinstance(own, tf.IndexedSlices):
            raise TypeError(
                f"delay_rows: the gradient of table {variable.name!r} is not of looked-up rows alone: "
                "something else reads all of it, such as a loss of its weights. Leave out delay_rows."
            )
        alone = split.check_alone(own, variable.name)
        with tf.control_dependencies([alone]):
            rows.store(split)
        return split.without_delayed(gradient)

    # ---- between steps --------------------------------------------------------------------------

    @property
    def are_waiting(self) -> bool:
        """Whether any rows are; the same on all workers. Eager."""
        return any(rows.are_waiting for rows in (known() for known in self._rows) if rows is not None)

    def synchronize(self) -> None:
        """Applies all delayed rows. Eager, collective."""
        if self.are_waiting:
            gc.collect()  # garbage alone must not wait for workers that have collected it
        self._rows = [known for known in self._rows if known() is not None]
        for rows in [known() for known in self._rows]:
            if rows is not None and rows.table is not None:
                rows.bring()
                rows.early.drop()  # those of a step that has failed, too

    def _applying(self):
        return while_set(self._local, applying=True)

    def check_read(self, name: str) -> None:
        """Raises RuntimeError where rows of a table wait; `name` is what is read."""
        allowed = self._step.running or self._local.applying
        if allowed or not tf.executing_eagerly():
            return
        if self.are_waiting:
            raise RuntimeError(
                f"the variable {name!r} is behind: with delay_rows=True some rows of tables are updated in "
                "the next step. Call strategy.synchronize() on all workers first; not on one alone, which "
                "would wait for the others."
            )

    check_write = check_read  # what is written would be moved by the next step
