"""Moves samples between nodes' memories, so that an exchange of rows costs no reading.

Without it nothing is wrong: a node reads and decodes the samples that an epoch brings it. What has left
gives its room to what comes, in the end: pipelines load an epoch's first batches before the last epoch has
ended, so what comes is stored as soon as it is there, and what leaves is kept until it is not needed.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import order
from datacache.cache import DataCache

# From one array of bytes for each of the M nodes to the array that each node has for this one.
AllToAll = Callable[[list[np.ndarray]], list[np.ndarray]]


class Moves(NamedTuple):
    """Samples that one node sends to, and receives from, each of the M nodes: int64 arrays, ascending."""

    sends: list[np.ndarray]
    receives: list[np.ndarray]


def moves(epoch: int, plan: order.Order, node_of_worker: Sequence[int], node: int) -> Moves:
    """Who sends what to whom before an epoch; pure, so that all nodes know without a word."""
    rows, before, after = (x.numpy() for x in order.exchanged_window(epoch, plan))
    nodes = np.asarray(node_of_worker)[rows % len(node_of_worker)]
    old = dict(zip(before.tolist(), nodes.tolist(), strict=True))
    was = np.array([old[sample] for sample in after.tolist()], np.int64)
    everyone = range(max(node_of_worker) + 1)

    def moved(source: int, target: int) -> np.ndarray:
        if source == target:
            return np.zeros(0, np.int64)
        return np.sort(after[(was == source) & (nodes == target)])

    return Moves([moved(node, other) for other in everyone], [moved(other, node) for other in everyone])


class Exchange:
    """Exchanges samples beside an epoch, by one process of each node.

    `start(epoch)` sends and receives in a thread what nodes must have for that epoch, and stores it if there
    is room; `finish()`, called when the epoch before is over, waits for that, gives up what has left, and
    stores what had no room until then. Every node must call both for the same epochs.

    For nodes whose share fits into memory; best with room for `fraction` of it more. Memory besides: that
    fraction, twice. Traffic: (M - 1) / M of it per node and epoch.

    Args:
      cache: this node's.
      plan: `cache.order(...)` with the dataset's arguments and shuffle="exchange".
      node_of_worker: for each of the P workers, its node, 0 to M - 1.
      node: this one.
      all_to_all: sends an array of bytes (uint8 [n]) to each node and returns what they sent. It is called
        from another thread than the training's.

    Raises:
      ValueError: `plan` is of another shuffle.
    """

    def __init__(
        self,
        cache: DataCache,
        plan: order.Order,
        node_of_worker: Sequence[int],
        node: int,
        all_to_all: AllToAll,
    ):
        if plan.shuffle != "exchange":
            raise ValueError(
                f'plan.shuffle={plan.shuffle!r}: there is nothing to exchange but with "exchange".'
            )
        self._cache, self._plan = cache, plan
        self._node_of_worker, self._node, self._all_to_all = list(node_of_worker), node, all_to_all
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._moves, self._received = Moves([], []), []

    def start(self, epoch: int) -> None:
        """Begins what epoch `epoch` (1 or more) needs; finishes first what was begun and not finished."""
        self.finish()
        self._moves = moves(epoch, self._plan, self._node_of_worker, self._node)
        self._error = None
        self._thread = threading.Thread(target=self._transfer, name="datacache exchange", daemon=True)
        self._thread.start()

    def finish(self) -> int:
        """Waits, and keeps what has come; returns how many samples came. Raises what the transfer raised."""
        if self._thread is None:
            return 0
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error
        path = self._cache.memory.path
        if path is not None:
            native.release(path, tf.constant(np.concatenate(self._moves.sends)))
            self._keep()  # those for which there was no room before
        self._received = []
        return sum(map(len, self._moves.receives))

    def _transfer(self) -> None:
        try:
            self._received = self._all_to_all([self._pack(ids) for ids in self._moves.sends])
            self._keep()
        except BaseException as error:  # handed to the training's thread
            self._error = error

    def _pack(self, ids: np.ndarray) -> np.ndarray:
        """The components of some samples, one after the other. What is not in memory is read now."""
        if not len(ids):
            return np.zeros(0, np.uint8)
        values = tf.nest.flatten(self._cache.load(tf.constant(ids)))
        return np.concatenate([value.numpy().reshape(-1).view(np.uint8) for value in values])

    def _unpack(self, data: np.ndarray, count: int) -> list[tf.Tensor]:
        values, at = [], 0
        for spec in tf.nest.flatten(self._cache.spec):
            size = count * spec.shape.num_elements() * spec.dtype.size
            raw = np.ascontiguousarray(data[at : at + size]).view(spec.dtype.as_numpy_dtype)
            values.append(tf.constant(raw.reshape([count, *spec.shape])))
            at += size
        return values

    def _keep(self) -> None:
        path = self._cache.memory.path
        if path is None:
            return
        with tf.device("CPU:0"):  # or what came would pass through a GPU's memory
            for ids, data in zip(self._moves.receives, self._received, strict=True):
                if len(ids):
                    native.put(path, tf.constant(ids), self._unpack(data, len(ids)))
