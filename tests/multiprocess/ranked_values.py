"""Values that tell workers and elements apart; integers, so that sums are exact in every order."""

import numpy as np
import tensorflow as tf


def value(rank, n, dtype="float32"):
    """[n], distinct for each (rank, element); sums of 4 workers of 7 elements fit into int8."""
    return (4 * np.arange(n) + rank).astype(tf.as_dtype(dtype).as_numpy_dtype)


def sum_of(topology, group, n, dtype="float32"):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    total = np.zeros(n, np.complex128)
    for rank in topology.ranks(group):
        total += value(rank, n).astype(np.complex128)
    return total.astype(dtype) if np.iscomplexobj(np.zeros(0, dtype)) else total.real.astype(dtype)
