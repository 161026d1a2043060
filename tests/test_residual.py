"""Shards of a residual, and where they lie in the whole."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.residual import Share, flush, in_place, shard_of
from tf_sparse_strategy.topology import Group


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_shards_make_up_the_whole(n, shards):
    """Also where there are more shards than elements: some hold nothing but padding then."""
    whole = tf.range(1.0, n + 1)
    shares = [Share(Group.CROSS, 2, 0, shards, shard) for shard in range(shards)]
    parts = [shard_of(whole, share) for share in shares]
    assert {len(part) for part in parts} == {shares[0].length(n)}
    np.testing.assert_array_equal(tf.concat(parts, 0)[:n], whole)
    assert not tf.concat(parts, 0)[n:].numpy().any()
    placed = [in_place(part, n, share) for part, share in zip(parts, shares, strict=True)]
    np.testing.assert_array_equal(sum(placed, tf.zeros([n])), whole)
    np.testing.assert_array_equal(flush(2 * whole, parts[-1], shares[-1]), 2 * whole + placed[-1])
