"""Chunks of variables: every element is in one chunk, and comes back to its place."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.overlap import chunks

SHAPES = [[1], [7], [3, 5], [2, 1, 3], [64], []]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_again(shape, workers):
    x = np.arange(1.0, 1 + np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    rows = chunks.rows(tf.constant(x), workers)
    assert rows.shape == [workers, chunks.size(x.size, workers)]
    np.testing.assert_array_equal(chunks.whole(rows, shape), x)
    for rank in range(workers):
        np.testing.assert_array_equal(chunks.own(tf.constant(x), workers, rank), rows[rank])
    assert np.sort(np.ravel(rows))[-x.size :].tolist() == np.ravel(x).tolist()  # the rest is padding


@pytest.mark.parametrize("workers", [2, 3])
def test_a_packed_row_is_what_a_worker_owns(workers):
    """Row r of what is packed, cut at the chunks' sizes, is chunk r of each tensor."""
    tensors = [tf.random.stateless_normal(shape, [1, i]) for i, shape in enumerate(SHAPES)]
    packed = tf.reshape(chunks.pack(tensors, workers), [workers, -1])
    sizes = [chunks.size(x.shape.num_elements(), workers) for x in tensors]
    for rank in range(workers):
        for x, part in zip(tensors, tf.split(packed[rank], sizes), strict=True):
            np.testing.assert_array_equal(part, chunks.own(x, workers, rank))
