"""`custom_ops.sum_entries` and `replace_entries` against numpy, and against what replaces them on GPUs."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.entries import entries as wrapper

# S, C, K, length, stride
SHAPES = [
    (1, 1, 1, 1, 0),
    (1, 1, 0, 5, 0),
    (0, 2, 3, 5, 0),
    (1, 0, 3, 5, 0),
    (2, 3, 7, 7, 0),
    (3, 4, 50, 1_000, 100),
    (1, 2, 30_000, 600_011, 0),
]


def made(shards, rows, count, length, stride):
    """(values, indices): distinct in each row."""
    rng = np.random.default_rng(count)
    values = rng.normal(size=[shards, rows, count]).astype(np.float32)
    n = length - stride * max(0, rows - 1)
    places = [rng.permutation(n)[:count] for _ in range(shards * rows)]
    return values, np.array(places, np.int32).reshape(shards, rows, count)


def added(values, indices, length, stride):
    total = np.zeros([len(values), length], np.float32)
    for shard, (whats, wheres) in enumerate(zip(values, indices, strict=True)):
        for row, (what, where) in enumerate(zip(whats, wheres, strict=True)):
            total[shard, stride * row + where] += what
    return total.reshape(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_graph", [False, True])
def test_sums_are_numpys_to_the_bit(shape, in_graph):
    *_, length, stride = shape
    values, indices = made(*shape)
    run = tf.function(custom_ops.sum_entries) if in_graph else custom_ops.sum_entries
    total, finite = run(tf.constant(values), tf.constant(indices), length, stride)
    np.testing.assert_array_equal(total, added(values, indices, length, stride))
    assert finite
    other, finite = wrapper._sum_by_tensorflow(tf.constant(values), indices, length, stride)
    np.testing.assert_array_equal(other, total)
    assert finite


def test_rows_are_added_in_their_order():
    """Which shows in the last bits."""
    values = np.array([[[1e8], [1.0], [-1e8]]], np.float32)
    same = np.zeros([1, 3, 1], np.int32)
    assert custom_ops.sum_entries(values, same, 1)[0].numpy()[0] == 0
    assert custom_ops.sum_entries(values[:, [0, 2, 1]], same, 1)[0].numpy()[0] == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("add", [custom_ops.sum_entries, wrapper._sum_by_tensorflow])
def test_sums_that_are_not_finite_are_told(wrong, add):
    values, indices = made(2, 3, 7, 9, 1)
    values[1, 2, 4] = wrong
    assert not add(tf.constant(values), indices, 9, 1)[1]
    most = tf.fill([1, 2, 1], np.finfo(np.float32).max)
    assert not add(most, tf.zeros([1, 2, 1], tf.int32), 1, 0)[1]


@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 1, 1), (3, 5, 0), (2, 40, 40), (1, 600_011, 999)])
@pytest.mark.parametrize("many", [False, True])
def test_replacing(shape, many):
    count, n, k = shape
    rng = np.random.default_rng(n)
    rows = rng.normal(size=[count, n]).astype(np.float32)
    indices = np.array([rng.permutation(n)[:k] for _ in range(count)], np.int32).reshape(count, k)
    values = rng.normal(size=[count, k]).astype(np.float32) if many else np.float32(7)
    expected = rows.copy()
    np.put_along_axis(expected, indices.astype(np.int64), values if many else 7, axis=1)
    for replace in (custom_ops.replace_entries, wrapper._replace_by_tensorflow):
        np.testing.assert_array_equal(replace(tf.constant(rows), indices, values), expected)


def test_what_others_need_is_not_overwritten():
    @tf.function
    def both(x):
        doubled = 2.0 * x
        return doubled, custom_ops.replace_entries(doubled, [[0]], 0.0)

    doubled, replaced = both(tf.ones([1, 4]))
    assert doubled.numpy().tolist() == [[2, 2, 2, 2]] and replaced.numpy().tolist() == [[0, 2, 2, 2]]


@pytest.mark.parametrize("place", [-1, 4, 2**31 - 1, -(2**31)])
def test_places_outside_are_refused(place):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = .* is not in \[0, 4\)"):
        custom_ops.sum_entries([[[1.0, 1.0]]], [[[0, place]]], 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = .* is not in \[0, 4\)"):
        custom_ops.replace_entries(tf.ones([1, 4]), [[0, place]], 0.0)


def test_a_stride_does_not_lead_out():
    """An index beyond its own row's part is in the vector still; the last row's part ends with it."""
    values = tf.ones([1, 2, 1])
    custom_ops.sum_entries(values, [[[4], [2]]], 5, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        custom_ops.sum_entries(values, [[[4], [3]]], 5, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="stride=6 leads 2 rows out of length=5"):
        custom_ops.sum_entries(values, [[[0], [0]]], 5, 6)


@pytest.mark.parametrize(
    "rows, indices, values", [([2, 3], [3, 1], []), ([2, 3], [2, 1], [2, 2]), ([3], [1], [1])]
)
def test_shapes_are_checked(rows, indices, values):
    arguments = (tf.ones(rows), tf.zeros(indices, tf.int32), tf.ones(values))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        custom_ops.replace_entries(*arguments)
    with pytest.raises(ValueError):
        tf.function(custom_ops.replace_entries)(*arguments)


def test_shapes_are_known_in_graphs():
    @tf.function
    def shapes(values, indices):
        total, finite = custom_ops.sum_entries(values, indices, 9)
        replaced = custom_ops.replace_entries(tf.reshape(total, [2, 9]), indices[:, 0], values[:, 0])
        assert (total.shape, finite.shape, replaced.shape) == ([18], [], [2, 9])
        return replaced

    shapes(*map(tf.constant, made(2, 3, 4, 9, 0)))


def test_examples():
    assert doctest.testmod(wrapper).failed == 0
