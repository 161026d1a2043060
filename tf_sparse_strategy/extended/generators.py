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
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.keras_callers import forget_global_seed_state, global_seed_state


def _states():
    seed_state = global_seed_state()
    drawn = None if seed_state is None else slices.local(seed_state).numpy().tolist()
    rng = _tensorflows()
    return random.getstate(), np.random.get_state(), rng and rng.getstate(), drawn


def _set(states) -> None:
    of_python, of_numpy, of_tensorflow, drawn = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_tensorflow and _tensorflows():
        _tensorflows().setstate(of_tensorflow)
    if drawn is None:
        forget_global_seed_state()
    else:
        slices.local(global_seed_state(make=True)).assign(drawn)


def _tensorflows():
    """Of operations without a seed of their own; None where no global seed is set."""
    return getattr(context.context(), "_rng", None)


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
