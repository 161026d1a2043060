"""Whole tables and slots, brought together from the slices of all workers.

All workers read a whole together; or the first one asks for it, while it saves, and the others answer.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding import checkpoints
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.overlap.variables import check_read

CHUNK = 1 << 22  # elements of a table that are on their way at a time
_END = -1


class _Saves(threading.local):
    """Of the thread: the save that it is in."""

    asking = False  # whether it saves, and the other workers answer
    writes = False  # whether TensorFlow writes a checkpoint, for which it will ask the others
    answers = False  # whether the first worker's TensorFlow does, and this one will answer


class Wholes:
    """Those that one strategy's slices are parts of.

    Args:
      collectives: of this worker.
      made: all slices, in the order in which the workers make them.
    """

    def __init__(self, collectives: Collectives, made: Sequence[weakref.ref]):
        self._collectives, self._made = collectives, made
        self._rank = collectives.topology.rank
        self._saves = _Saves()

    def of(self, held: Any) -> np.ndarray:
        """The whole that a slice is a part of: collective, unless the first worker asks in `asking()`."""
        if held.partition.workers == 1:
            check_read(held)
            return held.values[0].numpy()
        end = held.partition.grid.rows
        self._ask(held, 0, end)
        return held.partition.whole(self._rows(held, not self._saves.asking, 0, end))

    def pass_rows(self, held: Any, take: Callable[[int, int, np.ndarray], None]) -> None:
        """Calls `take(first, end, rows [first, end))` for all rows of a divided table; collective as `of`.

        What `take` raises is raised when the others, who do not know of it, have sent the rest.
        """
        end = held.partition.grid.rows
        self._ask(held, 0, end)
        self._pass(held, not self._saves.asking, 0, end, take)

    def in_checkpoint(self, held: Any) -> dict:
        """What TensorFlow writes of a slice's whole, in `saving()`; else what it reads for this worker."""
        if held.partition.workers == 1:
            return checkpoints.whole(held, lambda: self.of(held))
        saves = self._saves
        if not (saves.asking or saves.writes or saves.answers):
            return checkpoints.to_read(held, self._rank)
        check_read(held)  # on all workers, before the first asks

        def fetch(first, end):
            self._request(self._index_of(held), first, end)
            return self._rows(held, False, first, end)

        return checkpoints.nothing_to_write() if saves.answers else checkpoints.to_write(held, fetch)

    def _rows(self, held, everywhere, first, end) -> np.ndarray | None:
        """Rows [first, end) of a divided slice's grid; None on workers that get none. Collective."""
        rows = None

        def put(start, stop, some):
            nonlocal rows
            if rows is None:
                rows = np.empty((end - first, some.shape[1]), some.dtype)
            rows[start - first : stop - first] = some

        self._pass(held, everywhere, first, end, put)
        return rows

    def _pass(self, held, everywhere, first, end, take):
        """Calls `take` as `pass_rows` does, for rows [first, end) of the grid, on workers that get rows."""
        failure = None
        for start, stop, rows in self._gathered(held, everywhere, first, end):
            try:
                if rows is not None and failure is None:
                    take(start, stop, rows)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _gathered(self, held, everywhere, first, end):
        """(start, stop, rows [start, stop)) of a divided slice's grid; no rows on workers that get none."""
        check_read(held)
        grid, local = held.partition.grid, held.values[0]
        for start, stop in grid.chunks(CHUNK, first, end):
            with tf.device(local.device):  # the same kind on all: TensorFlow writes from a CPU
                sent = tf.reshape(tf.gather(local, tf.range(start, stop)), [-1])  # a slice would copy all
                if everywhere:
                    received = self._collectives.all_gather(sent, purpose="gather_table")
                else:
                    splits = [int(tf.size(sent))] + [0] * (grid.workers - 1)
                    received, _ = self._collectives.all_to_all(sent, splits, purpose="gather_table")
            rows = None
            if everywhere or self._rank == 0:
                ends = np.cumsum([(stop - start) * width for width in grid.widths])
                blocks = zip(np.split(received.numpy(), ends[:-1]), grid.widths, strict=True)
                rows = np.concatenate([block.reshape(stop - start, width) for block, width in blocks], axis=1)
            yield start, stop, rows

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """On the first worker, while it saves: what reads tables asks the others, which are in `answer()`."""
        try:
            with while_set(self._saves, asking=True):
                yield
        finally:
            self._request(_END, 0, 0)

    def answer(self) -> None:
        """On the other workers, while the first is in `asking()`: sends what it asks for."""
        while (asked := self._request(_END, 0, 0))[0] != _END:
            index, first, end = asked
            self._rows(self._made[index](), False, first, end)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """On all workers, while TensorFlow writes a checkpoint that holds divided slices."""
        if self._saves.asking:  # tf_keras writes one within a save of its own
            yield
            return
        is_first = self._rank == 0
        try:
            with while_set(self._saves, **{"writes" if is_first else "answers": True}):
                yield
        except Exception as error:
            if is_first:  # which waits for the others before it raises, and they may wait elsewhere
                logging.error("The first worker cannot write a checkpoint: %s", error)
            raise
        finally:  # also where all workers fail
            if is_first:
                self._request(_END, 0, 0)
            else:
                self.answer()

    def _ask(self, held, first, end) -> None:
        """In `asking()`: asks the other workers for rows [first, end) of a slice's grid."""
        if self._saves.asking:
            self._request(self._index_of(held), first, end)

    def _index_of(self, held) -> int:
        return next(i for i, known in enumerate(self._made) if known() is held)

    def _request(self, index: int, first: int, end: int) -> list[int]:
        with tf.device("CPU:0"):
            wanted = tf.constant([index, first, end], tf.int64)
            return self._collectives.broadcast(wanted, purpose="table_asked_for").numpy().tolist()
