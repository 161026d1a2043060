"""`custom_ops.sum_entries` and `replace_entries` against numpy, and against what replaces them on GPUs."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.entries import entries as wrapper

# S, C, K, length
SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 0, 5),
    (0, 2, 3, 5),
    (1, 0, 3, 5),
    (2, 3, 7, 7),
    (3, 4, 50, 1_000),
    (1, 2, 30_000, 600_011),
    (1, 2, 100, 2**24 + 2),  # whose last place float32 cannot tell
    (2, 1, 4, 2**24 + 2),
]


def made(shards, rows, count, length, rising=False):
    """(values, indices): distinct in each row, in which they may be `rising`."""
    rng = np.random.default_rng(count)
    values = rng.normal(size=[shards, rows, count]).astype(np.float32)
    places = [rng.permutation(length)[:count] for _ in range(shards * rows)]
    for place in places:
        if count and length - 1 not in place:
            place[0] = length - 1
        if rising:
            place.sort()
    return values, np.array(places, np.int32).reshape(shards, rows, count)


def added(values, indices, length):
    total = np.zeros([len(values), length], np.float32)
    for shard, (whats, wheres) in enumerate(zip(values, indices, strict=True)):
        for what, where in zip(whats, wheres, strict=True):
            total[shard, where] += what
    return total.reshape(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_sums_are_numpys_to_the_bit(shape, rising, in_graph):
    *_, length = shape
    values, indices = made(*shape, rising)
    run = tf.function(custom_ops.sum_entries) if in_graph else custom_ops.sum_entries
    total, finite = run(tf.constant(values), tf.constant(indices), length)
    np.testing.assert_array_equal(total, added(values, indices, length))
    assert finite
    other, finite = wrapper._sum_by_tensorflow(tf.constant(values), indices, length)
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
@pytest.mark.parametrize("rising", [False, True])
def test_sums_that_are_not_finite_are_told(wrong, add, rising):
    values, indices = made(2, 3, 7, 9, rising)
    values[1, 2, 4] = wrong
    assert not add(tf.constant(values), indices, 9)[1]
    most = tf.fill([1, 2, 1], np.finfo(np.float32).max)
    assert not add(most, tf.zeros([1, 2, 1], tf.int32), 1)[1]


@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (1, 1, 1), (3, 5, 0), (2, 40, 40), (1, 600_011, 999), (1, 2**24 + 2, 99)]
)
@pytest.mark.parametrize("many", [False, True])
def test_replacing(shape, many):
    count, n, k = shape
    rng = np.random.default_rng(n)
    rows = rng.normal(size=[count, n]).astype(np.float32)
    [values], [indices] = made(1, count, k, n)
    values = values if many else np.float32(7)
    expected = rows.copy()
    np.put_along_axis(expected, indices.astype(np.int64), values if many else 7, axis=1)
    for replace in (custom_ops.replace_entries, wrapper._replace_by_tensorflow):
        np.testing.assert_array_equal(replace(tf.constant(rows), indices, values), expected)


@pytest.mark.parametrize("replace", [custom_ops.replace_entries, wrapper._replace_by_tensorflow])
def test_one_value_may_come_twice(replace):
    replaced = replace(tf.ones([1, 4]), tf.constant([[2, 0, 2]]), tf.constant([[5.0, 6.0, 5.0]]))
    assert replaced.numpy().tolist() == [[6, 1, 5, 1]]


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


def test_no_product_wraps():
    values = tf.ones([4, 3, 1])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        custom_ops.sum_entries(values, tf.zeros([4, 3, 1], tf.int32), 2**62)


def test_any_number_of_rows_of_nothing():
    nothing, indices = tf.zeros([2**40, 1, 0]), tf.zeros([2**40, 1, 0], tf.int32)
    total, finite = custom_ops.sum_entries(nothing, indices, 0)
    assert total.shape == [0] and finite
    assert custom_ops.replace_entries(nothing[:, 0], indices[:, 0], 0.0).shape == [2**40, 0]


@pytest.fixture(params=["CPU", "GPU"])
def device(request, monkeypatch):
    """Where the tensors might be: with a GPU in sight TensorFlow's operations take over."""
    monkeypatch.setattr(wrapper, "on_gpu", lambda: request.param == "GPU")
    return request.param


SHAPES_OF_SUMS = [([1, 2, 3], [1, 1, 3]), ([2, 3], [2, 3]), ([1, 1, 2], [1, 1, 3])]
SHAPES_OF_ROWS = [([2, 3], [3, 1], []), ([2, 3], [2, 1], [2, 2]), ([2, 3], [2, 2], [2]), ([3], [1], [1])]


@pytest.mark.parametrize("in_graph", [False, True])
def test_shapes_are_checked(device, in_graph):
    kind = tf.function if in_graph else lambda f: f
    for values, indices in SHAPES_OF_SUMS:
        with pytest.raises(ValueError):
            kind(lambda *x: custom_ops.sum_entries(*x, 5))(tf.ones(values), tf.zeros(indices, tf.int32))
    for rows, indices, values in SHAPES_OF_ROWS:
        with pytest.raises(ValueError):
            kind(custom_ops.replace_entries)(tf.ones(rows), tf.zeros(indices, tf.int32), tf.ones(values))


def test_shapes_that_only_the_run_knows(device):
    """As of OkTopK's messages."""

    @tf.function(input_signature=[tf.TensorSpec([None, 1, None]), tf.TensorSpec([None, 1, None], tf.int32)])
    def run(values, indices):
        total, finite = custom_ops.sum_entries(values, indices, 9)
        rows = tf.reshape(total, [-1, 9])
        return total, finite, custom_ops.replace_entries(rows, indices[:, 0], values[:, 0])

    values, indices = made(2, 1, 4, 9)
    total, finite, replaced = run(values, indices)
    np.testing.assert_array_equal(total, added(values, indices, 9))
    np.testing.assert_array_equal(tf.reshape(replaced, [-1]), total)
    assert finite


def test_shapes_are_known_in_graphs():
    @tf.function
    def shapes(values, indices):
        total, finite = custom_ops.sum_entries(values, indices, 9)
        replaced = custom_ops.replace_entries(tf.reshape(total, [2, 9]), indices[:, 0], values[:, 0])
        assert (total.shape, finite.shape, replaced.shape) == ([18], [], [2, 9])
        return replaced

    shapes(*map(tf.constant, made(2, 3, 4, 9)))


def test_variables_stay_as_they_are():
    variable = tf.Variable(tf.ones([1, 4]))
    replaced = tf.function(lambda: custom_ops.replace_entries(variable, [[1]], 0.0))()
    assert replaced.numpy().tolist() == [[1, 0, 1, 1]] and variable.numpy().tolist() == [[1, 1, 1, 1]]


def test_there_is_no_gradient(device):
    x = tf.ones([1, 1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total, _ = custom_ops.sum_entries(x, [[[0, 2]]], 4)
        loss = tf.reduce_sum(total) + tf.reduce_sum(custom_ops.replace_entries(x[0], [[1]], 0.0))
    assert tape.gradient(loss, x) is None


def test_examples():
    assert doctest.testmod(wrapper).failed == 0
