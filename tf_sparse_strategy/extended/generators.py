"""Generators of random numbers of this process, which workers share: shuffles must agree.

What one worker draws alone, the initial values of a whole table or the copy of a model that it exports, must
not leave it ahead of the others.
"""

import contextlib
import pickle
import random
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.keras_callers import global_seed_state


def _states():
    seed_state = global_seed_state()
    drawn = None if seed_state is None else seed_state.numpy().tolist()
    # TensorFlow's is that of operations without a seed of their own.
    return random.getstate(), np.random.get_state(), context.context()._rng.getstate(), drawn


def _set(states) -> None:
    of_python, of_numpy, of_tensorflow, drawn = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    context.context()._rng.setstate(of_tensorflow)
    if drawn is not None:  # None: Keras 3 has drawn nothing yet
        global_seed_state().assign(drawn)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Afterwards they are as they were."""
    before = _states()
    try:
        yield
    finally:
        _set(before)


def follow_first(collectives: Collectives) -> None:
    """Brings all workers' to the state that they have on the first. Collective."""
    is_first = collectives.topology.rank == 0
    own = np.frombuffer(pickle.dumps(_states()), np.uint8) if is_first else np.zeros([0], np.uint8)
    firsts = collectives.all_gather(tf.constant(own), purpose="generators").numpy().tobytes()
    if not is_first:
        _set(pickle.loads(firsts))
