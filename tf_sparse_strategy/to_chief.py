"""What workers hold each, brought to rank 0."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.agreement import pieces
from tf_sparse_strategy.collectives import Collectives


def are_empty(variables: Iterable[tf.Variable], collectives: Collectives) -> list[bool]:
    """For each whether all workers' are zero: as large as the weights, and soon told. Collective."""
    some = [tf.reduce_any(variable != 0) for variable in variables]
    if not some:
        return []
    flags = tf.cast(tf.stack(some), tf.int32)
    return (collectives.all_reduce(flags, op="max", purpose="memory").numpy() == 0).tolist()


def gathered(held: tf.Variable, collectives: Collectives) -> np.ndarray:
    """[P, ...] on rank 0: every worker's value, in rank order; elsewhere [0, ...]. Collective."""
    workers = collectives.topology.num_workers
    to_chief = [1] + [0] * (workers - 1)
    parts = [
        collectives.all_to_all(part[tf.newaxis], to_chief, purpose="memory")[0]
        for part in pieces(tf.reshape(held, [-1]), senders=workers)
    ]
    rows = np.concatenate(parts, axis=1)
    return rows.reshape([len(rows), *held.shape])
