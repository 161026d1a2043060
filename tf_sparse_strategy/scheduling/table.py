"""One table's delayed rows, between the step that they belong to and the next."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import keras_callers
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.gradient_kinds import coalesced
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.scheduling import eligible
from tf_sparse_strategy.scheduling.early import EarlyRows, no_rows
from tf_sparse_strategy.scheduling.split import Split, contains


class DelayedRows:
    """Rows of a gradient that this worker has not sent yet, and what their update needs.

    Args:
      table: the slice that they will update.
      applying: while what it gives lasts, tables that are behind may be read and written.

    Attributes:
      wire_dtype: in which they travel.
      optimizer: the last one that was built on the table.
      looked_up_within: whether a function that a step calls looks the table up, too.
      early: the rows that the next lookup may have already.
    """

    def __init__(self, table: Any, applying: Callable[[], contextlib.AbstractContextManager]):
        self._table, self._applying = weakref.ref(table), applying
        self.wire_dtype, self.early = table.dtype, EarlyRows(table)
        self.optimizer, self._number, self.looked_up_within = None, 0, False
        self._optimizers = weakref.WeakValueDictionary()  # by number; former ones may train again
        self._ids, self._rows = no_rows(table, table.dtype)
        self._step = plain_variable(0, "CPU:0", dtype=tf.int64)
        self._rate = plain_variable(0.0, "CPU:0", dtype=tf.float64)
        self._waiting = plain_variable(0, "CPU:0", dtype=tf.int32)  # for which optimizer, 0 for none

    @property
    def table(self) -> Any:
        """The slice; None once nobody holds it."""
        return self._table()

    @property
    def are_waiting(self) -> bool:
        """Whether there are any; the same on all workers. Eager."""
        with tf.init_scope():
            return self._waiting.numpy() > 0

    def reason_against(self, optimizer: Any) -> str | None:
        """Why a step of `optimizer` must update all rows at once; None if it need not."""
        if self.looked_up_within:
            return "a function that the step calls looks it up, too"
        return None if self.optimizer is optimizer else "another optimizer was built on it"

    def take_optimizer(self, optimizer: Any) -> None:
        """From now on `optimizer` updates the table, in functions that are traced from now on."""
        self.optimizer, self._number = optimizer, self._number + 1
        self._optimizers[self._number] = optimizer

    # ---- in a step ------------------------------------------------------------------------------

    def store(self, split: Split) -> None:
        """Keeps the delayed rows of the step under way."""
        rows = tf.cast(split.delayed_rows, self._rows.dtype)
        with tf.control_dependencies([rows]):  # or a backward pass that fails would leave ids without rows
            self._ids.assign(tf.identity(split.delayed_ids))
            self._rows.assign(rows)
            self._step.assign(tf.cast(self.optimizer.iterations, tf.int64))
            self._rate.assign(tf.cast(self.optimizer.learning_rate, tf.float64))
            self._waiting.assign(self._number)

    def bring(self) -> None:
        """Exchanges and applies the rows, if there are any. Collective."""
        if tf.executing_eagerly():
            if self.are_waiting:
                self._send_and_apply()
        else:
            tf.cond(self._waiting.read_value() > 0, self._send_and_apply, _nothing)

    def bring_if_among(self, ids: tf.Tensor) -> None:
        """The same, if any of `ids`, which all workers know, is one of the rows."""
        waiting = tf.logical_and(
            self._waiting.read_value() > 0, tf.reduce_any(contains(self._ids.read_value(), ids))
        )
        tf.cond(waiting, self._send_and_apply, _nothing)

    def _send_and_apply(self):
        number, known, table = self._waiting.read_value(), None, self.table
        if tf.executing_eagerly():
            optimizer = self._optimizers.get(int(number))
            if optimizer is None:
                self._waiting.assign(0)
                logging.warning("delay_rows: rows of %s wait, but their optimizer is gone.", table.name)
                return _nothing()
        else:
            optimizer = self.optimizer
            known = tf.debugging.assert_equal(
                number, self._number,
                "delay_rows: rows wait for another optimizer than the one that was built last when this "
                "function was traced. Call strategy.synchronize() on all workers first.",
            )  # fmt: skip
            if optimizer is None or not eligible.updates_rows(optimizer):
                return _nothing()  # no rows wait for such a one, or the assertion fails
        with tf.control_dependencies([known]):
            ids = self._ids.read_value()
        rows = tf.cast(self._rows.read_value(), self.wire_dtype)
        received = _columns_of_all(rows, tf.size(ids), table)
        values = tf.cast(received, table.dtype)
        gradient = coalesced(tf.IndexedSlices(values, ids, tf.constant(table.shape.as_list(), tf.int64)))
        step, rate = self._step.read_value(), self._rate.read_value()
        self._waiting.assign(0)
        self.early.drop()  # what does not wait, others may write
        with self._applying(), keras_callers.without_autocast(), while_set(optimizer, _iterations=step):
            _update(optimizer, table, gradient, rate)
        return _nothing()


def _columns_of_all(rows, number, table):
    """[own rows, columns of the group] -> [rows of all of it, own columns]."""
    held, width = table.slices, table.partition.widths[table.slices.rank]
    widths = held.widths(table.partition)
    message = tf.concat([tf.reshape(part, [-1]) for part in tf.split(rows, widths, axis=1)], axis=0)
    splits = tf.shape(rows)[0] * tf.constant(widths)
    received, _ = held.collectives.all_to_all(
        message, splits, group=held.group, purpose="embedding_delayed"
    )
    return tf.reshape(received, [number, width])


def _update(optimizer, table, gradient, rate):
    """What Keras's optimizers do with a variable and its summed gradient."""

    def update(variable, gradient, rate):
        optimizer.update_step(gradient, variable, rate)

    extended = table.distribute_strategy.extended
    extended.update(table, update, args=(gradient, rate), group=False)


def _nothing():
    return tf.zeros([], tf.int32)
