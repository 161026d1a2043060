"""What training does per second and per step: steps, rows, collective calls and bytes.

Counters only ever grow; what happened between two readings is their difference. Rates come from the
differences of all workers, in rank order, and the seconds that passed.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives


@dataclasses.dataclass(frozen=True)
class Counts:
    """What one worker has done.

    Args:
      steps: replica functions run on a batch.
      rows: rows of these batches that count (samples).
      calls: collective operations issued.
      local_bytes, cross_bytes: sent inside the node and to other nodes.
    """

    steps: int = 0
    rows: int = 0
    calls: int = 0
    local_bytes: int = 0
    cross_bytes: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(self.to_list(), other.to_list(), strict=True)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(a - b for a, b in zip(self.to_list(), other.to_list(), strict=True)))

    def to_list(self) -> list[int]:
        """The five numbers in the order of the fields."""
        return list(dataclasses.astuple(self))


class StepCounter:
    """Counts the steps one worker runs and the rows it is given, eagerly and in graphs."""

    def __init__(self):
        self._counter = None

    def add(self, args, rows: tf.Tensor | None) -> None:
        """Counts one step.

        Args:
          args: what the replica function is given; a call without any batch is not counted.
          rows: how many rows count where that is known; else the first dimension of `args`.
        """
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return  # TF1 graphs would have to run the counter explicitly
        batched = [x for x in tf.nest.flatten(args) if _has_rows(x)]
        if not batched:
            return
        if rows is None:
            rows = input_pipeline.num_rows(batched)
        if self._counter is None:
            self._counter = plain_variable([0, 0], dtype=tf.int64)
        self._counter.assign_add(tf.stack([tf.ones([], tf.int64), tf.cast(rows, tf.int64)]))

    def read(self) -> tuple[int, int]:
        """(steps, rows) so far."""
        if self._counter is None:
            return 0, 0
        steps, rows = self._counter.numpy().tolist()
        return steps, rows


def _has_rows(x) -> bool:
    return tf.is_tensor(x) and not isinstance(x, tf.Variable) and x.shape.rank != 0


def read(strategy) -> Counts:
    """What this worker of a `SparseStrategy` has done so far."""
    calls, sent = strategy.extended.collectives.traffic()
    steps, rows = strategy.extended.steps.read()
    return Counts(steps, rows, calls, sent.local, sent.cross)


def gather(counts: Counts, collectives: Collectives) -> list[Counts]:
    """Every worker's counts, in rank order. Collective: 40 bytes per worker."""
    mine = tf.constant([counts.to_list()], tf.int64)
    everyone = collectives.all_gather(mine, purpose="metrics")
    return [Counts(*row) for row in everyone.numpy().tolist()]


def rates(workers: Sequence[Counts], seconds: float) -> dict[str, float]:
    """What Keras logs and TensorBoard show of one stretch of training.

    Args:
      workers: what each worker did in it, in rank order.
      seconds: how long it took.

    Returns:
      `samples_per_second` (all workers together), `seconds_per_step`, `collectives_per_step` (of
      one worker), `bytes_per_step` (sent by all workers together), `cross_bytes_per_step` (the part
      of it between nodes), `worker_bytes_per_step` (sent by the worker that sends most) and
      `imbalance` (what that is of the mean; 1 where all send the same). Zeros where no step was run.
    """
    steps = max(worker.steps for worker in workers)
    per_step = 1.0 / steps if steps else 0.0
    sent = np.array([[w.local_bytes, w.cross_bytes] for w in workers], float) * per_step
    by_worker = sent.sum(axis=1)
    return {
        "samples_per_second": sum(w.rows for w in workers) / seconds if seconds > 0 else 0.0,
        "seconds_per_step": seconds * per_step,
        "collectives_per_step": max(worker.calls for worker in workers) * per_step,
        "bytes_per_step": float(sent.sum()),
        "cross_bytes_per_step": float(sent[:, 1].sum()),
        "worker_bytes_per_step": float(by_worker.max()),
        "imbalance": float(by_worker.max() / by_worker.mean()) if by_worker.any() else 0.0,
    }
