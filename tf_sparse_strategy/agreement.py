"""What workers must agree on by asking each other: that data is left, and the random seed."""

import os
import random

import tensorflow as tf
from absl import logging

from tf_sparse_strategy.collectives import Collectives


def all_have_data(optional: tf.experimental.Optional, collectives: Collectives) -> tf.Tensor:
    """Whether every worker's `optional` has a value; says so when only some have. Collective."""
    workers = collectives.topology.num_workers
    ready = collectives.all_reduce(tf.cast(optional.has_value(), tf.int32), purpose="input")

    def warn():
        tf.print(
            "WARNING: the epoch ends because only", ready, "of", workers, "workers have data left;",
            "theirs is not used. Use AutoShardPolicy.DATA, or model.fit, which counts every row.",
        )
        return tf.constant(False)

    some = tf.logical_and(ready > 0, ready < workers)
    return tf.cond(some, warn, lambda: ready == workers)


def total_rows(optional: tf.experimental.Optional, collectives: Collectives) -> tf.Tensor:
    """Rows of all workers' tagged batches (`input.Batch`); 0 when the epoch is over. Collective.

    Raises:
      tf.errors.InvalidArgumentError: a worker has not even a row of no account to go on with.
    """
    has_value = optional.has_value()
    rows = tf.cond(has_value, lambda: optional.get_value().rows, lambda: tf.zeros([], tf.int64))
    missing = tf.cast(tf.logical_not(has_value), tf.int64)
    total, empty = tf.unstack(
        collectives.all_reduce(tf.stack([rows, missing]), purpose="input")
    )
    check = tf.debugging.Assert(
        tf.logical_or(total == 0, empty == 0),
        ["a worker's files hold no rows at all; use AutoShardPolicy.DATA or fewer workers"],
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(total)


def agree_on_seed(mine: int | None, collectives: Collectives) -> None:
    """Unless the user seeded, gives all workers rank 0's random seed, so that shuffles agree.

    Args:
      mine: this worker's global TensorFlow seed, None where the user set none.
      collectives: of this worker. Collective.
    """
    fresh = int.from_bytes(os.urandom(4), "big") >> 1
    row = tf.constant([[mine is not None, mine or 0, fresh]], tf.int64)
    seeds = collectives.all_gather(row, purpose="seed").numpy().tolist()
    if not any(is_set for is_set, _, _ in seeds):
        tf.random.set_seed(seeds[0][2])
        random.seed(seeds[0][2])  # Keras shuffles Sequences and PyDatasets by it
    elif len({(is_set, seed) for is_set, seed, _ in seeds}) > 1:
        logging.warning(
            "Workers have different random seeds (rank, set, seed): %s. Shuffled datasets that are "
            "sharded by rows will not agree; call set_random_seed with the same number everywhere.",
            [(rank, bool(is_set), seed) for rank, (is_set, seed, _) in enumerate(seeds)],
        )
