"""`custom_ops.permuted_index` through TensorFlow; the algorithm has its own C++ tests."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.permutation import permutation as wrapper


def permuted(index, size, key):
    return custom_ops.permuted_index(tf.constant(index, tf.int64), size, key).numpy().tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_permutes(size):
    assert sorted(permuted(range(size), size, [3])) == list(range(size))


def test_is_what_it_was():
    """As in the C++ test."""
    assert permuted(range(10), 10, [7]) == [6, 1, 9, 2, 8, 5, 7, 3, 0, 4]


def test_sizes_and_words_of_one_or_of_each():
    sizes, words = tf.constant([5, 6, 1], tf.int64), tf.constant([8, 9, 10], tf.int64)
    together = permuted([4, 4, 0], sizes, [1, words])
    each = [permuted([i], n, [1, w])[0] for i, n, w in zip([4, 4, 0], sizes, words, strict=True)]
    assert together == each


def test_each_word_chooses_another():
    found = {tuple(permuted(range(20), 20, key)) for key in ([1, 2], [2, 1], [1, 3], [1], [1, 2, 0], [-1, 2])}
    assert len(found) == 6


def test_none():
    assert permuted([], 5, [1]) == []


@pytest.mark.parametrize(("index", "size"), [([5], 5), ([-1], 5), ([0], 0), ([0], (1 << 62) + 1)])
def test_what_no_permutation_has_is_refused(index, size):
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"index\[0\] is {index[0]} of .* {size}"):
        permuted(index, size, [1])


def test_what_is_not_whole_is_refused():
    with pytest.raises(TypeError, match="float32"):
        custom_ops.permuted_index(tf.constant([0.5]), 5, [1])
    with pytest.raises(TypeError, match="float64"):
        custom_ops.permuted_index(np.array([0.5]), 5, [1])


def test_shapes():
    traced = tf.function(lambda i, n, w: custom_ops.permuted_index(i, n, [w]))
    unknown, three = tf.TensorSpec(None, tf.int64), tf.TensorSpec([3], tf.int64)
    assert traced.get_concrete_function(unknown, three, unknown).output_shapes == [3]
    with pytest.raises(ValueError, match="must be equal"):
        traced.get_concrete_function(three, tf.TensorSpec([2], tf.int64), unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input 1 has shape \[2\]"):
        traced.get_concrete_function(unknown, unknown, unknown)(*[tf.ones([n], tf.int64) for n in (3, 2, 3)])


def test_iterators_with_it_can_be_saved(tmp_path):
    dataset = tf.data.Dataset.range(10).batch(2).map(lambda i: custom_ops.permuted_index(i, 10, [1]))
    iterator = iter(dataset)
    first = next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "at"))
    rest = np.concatenate([batch.numpy() for batch in iterator])
    again = iter(dataset)
    tf.train.Checkpoint(iterator=again).restore(path)
    np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in again]), rest)
    assert sorted([*first.numpy(), *rest]) == list(range(10))


def test_the_example():
    assert doctest.testmod(wrapper).failed == 0
