"""Batches that memory has in part, completed with what was read."""

import numpy as np
import pytest
import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native


def batch(rows):
    """Two components of as many samples, told apart by `rows`."""
    rows = tf.constant(rows, tf.int64)
    images = tf.cast(rows[:, None, None] + tf.reshape(tf.range(6, dtype=tf.int64), [2, 3]), tf.uint8)
    return [images, tf.cast(rows, tf.float32)]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "found", [[], [True], [False], [True, False, True, False, False], [False, True], [True] * 3, [False] * 3]
)
def test_completed_batches(found, graph):
    complete = tf.function(native.complete) if graph else native.complete
    here = np.array(found, bool)
    ids = np.arange(len(here)) + 10
    values = batch(np.where(here, ids, 0))
    before = [value.numpy() for value in values]
    completed = complete(tf.constant(here), values, batch(ids[~here]))
    for one, other in zip(completed, batch(ids), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(values, before, strict=True):  # that somebody else holds are not written to
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("found", "rows", "fresh", "named"),
    [
        ([True, False], 2, 2, r"fresh\[0\].*\[2,2,3\].*\[1,2,3\] for 1 absent"),
        ([True, False], 3, 1, r"values\[0\].*\[3,2,3\] for 2 samples"),
        ([[True]], 1, 0, r"found has shape \[1,1\]"),
    ],
)
def test_batches_that_cannot_be_completed(found, rows, fresh, named):
    with pytest.raises(tf.errors.InvalidArgumentError, match=named):
        native.complete(tf.constant(found), batch(range(rows)), batch(range(fresh)))


def test_what_must_be_a_scalar(tmp_path):
    """An error instead of the process's end."""
    path = str(tmp_path / "store")
    native.create(path, 4, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input 0 has shape \[2\]; all must be scalars"):
        native.fetch(path, tf.constant([1, 2], tf.int64))
