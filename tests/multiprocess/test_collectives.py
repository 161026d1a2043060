"""Collectives against NumPy on every worker: integer-valued data, so that equality is exact."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.topology import Group

SIZES = [0, 1, 2, 3, 7, 64, 1001]
GROUPS = list(Group)
MODES = ["eager", "function"]


def value(rank, n, dtype="float32"):
    """Distinct for each (rank, element), so that any mis-routing shows."""
    return np.asarray((rank + 1) * 100 + np.arange(n) % 50).astype(dtype)


def call(mode, fn, *args):
    return tf.function(fn)(*args) if mode == "function" else fn(*args)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("n", SIZES)
def test_all_reduce_sums(comm, topology, n, group, mode):
    expected = sum((value(r, n) for r in topology.ranks(group)), np.zeros(n, "float32"))
    result = call(mode, lambda x: comm.all_reduce(x, group), tf.constant(value(topology.rank, n)))
    np.testing.assert_array_equal(result, expected)
