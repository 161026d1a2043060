"""What is asked of gradients before they travel."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.gradient_kinds import all_finite, repeats


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8])
def test_a_part_over_and_over_is_found(n):
    """Of all vectors of two values, and none else."""
    for indices in itertools.product([0, 1], repeat=n):
        parts = (indices[:length] * (n // length) for length in range(1, n) if n % length == 0)
        assert bool(repeats(tf.constant(indices))) == (indices in parts)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(dtype, bad):
    x = np.ones(5, dtype)
    assert all_finite(tf.constant(x))
    if dtype != "int32":
        x[3] = bad
        assert not all_finite(tf.constant(x))
