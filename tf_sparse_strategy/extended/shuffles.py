"""Shuffles that are the same on all workers, of which each takes its part."""

import hashlib
import os
import random

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives

_given: set[int] = set()  # seeds that were ours, not the user's


class Shuffles:
    """Made by all workers together, gives them one seed where the user has set none.

    Args:
      collectives: of this worker.
    """

    def __init__(self, collectives: Collectives):
        several = collectives.topology.num_workers > 1
        self._seed = _agree_on_seed(context.global_seed(), collectives) if several else None
        self._made = 0

    def another(self):
        """A function like `tf.random.shuffle`; None where the user has set TensorFlow's seed.

        Each call of it in a dataset gives another order, the same on all workers, if none is beside another.
        """
        if self._seed is None or context.global_seed() != self._seed:
            return None
        self._made += 1
        first = tf.constant(self._seed + self._made, tf.int64)
        calls = plain_variable(0, "CPU:0", dtype=tf.int64)

        def shuffle(x):
            return tf.random.experimental.stateless_shuffle(x, tf.stack([first, calls.assign_add(1)]))

        return shuffle


def _agree_on_seed(mine: int | None, collectives: Collectives) -> int | None:
    """Gives generators that the user has not seeded the same state on all workers. Collective.

    TensorFlow's gets rank 0's seed; Python's and NumPy's, by which Keras shuffles PyDatasets and files of
    directories, the same, or the user's for TensorFlow. One that is in one state everywhere has been seeded.

    Args:
      mine: this worker's global TensorFlow seed, None where the user set none.
      collectives: of this worker.

    Returns:
      The seed that TensorFlow was given by us, now or before; None where the user has set one.
    """
    fresh = int.from_bytes(os.urandom(4), "big") >> 1
    _, words, position, *_ = np.random.get_state()
    states = [_digest(repr(random.getstate()).encode()), _digest(words.tobytes() + repr(position).encode())]
    row = tf.constant([[mine is not None, mine or 0, fresh, *states]], tf.int64)
    rows = collectives.all_gather(row, purpose="seed").numpy().tolist()
    seeds = [(is_set, seed) for is_set, seed, *_ in rows]
    if len(set(seeds)) > 1:
        logging.warning(
            "Workers have different random seeds (rank, set, seed): %s. Shuffled datasets that are "
            "sharded by rows will not agree; call set_random_seed with the same number everywhere.",
            [(rank, bool(is_set), seed) for rank, (is_set, seed) in enumerate(seeds)],
        )
        return None
    shared = rows[0][2] if mine is None else mine % 2**32
    if mine is None:
        tf.random.set_seed(shared)
        _given.add(shared)
    generators = ("random", random.seed, 3), ("numpy.random", np.random.seed, 4)
    apart = {name: seed for name, seed, column in generators if len({row[column] for row in rows}) > 1}
    for seed in apart.values():
        seed(shared)
    if apart and collectives.topology.rank == 0:
        logging.log(
            logging.INFO if mine is None else logging.WARNING,
            "%s: seeded by %d on all workers, so that shuffles agree; their states differed. Seed them (not "
            "TensorFlow) after making the strategy if workers are to draw other numbers.",
            " and ".join(apart),
            shared,
        )
    return shared if shared in _given else None


def _digest(state: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(state, digest_size=7).digest(), "big")
