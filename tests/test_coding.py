"""`custom_ops.encode_indices`, `decode_indices`: there and back."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.entries import coding

# R, N, K
SIZES = [(1, 1, 1), (0, 9, 3), (2, 33, 33), (3, 64, 1), (4, 1_000, 10), (2, 100_003, 999), (1, 7, 7)]


def chosen(rows, n, k):
    rng = np.random.default_rng(n)
    found = [np.sort(rng.choice(n, k, replace=False)) for _ in range(rows)]
    return np.array(found, np.int32).reshape(rows, k)


def shortest(n, k):
    low = (n // k).bit_length() - 1
    return low, k + ((n - 1) >> low)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("in_graph", [False, True])
def test_there_and_back(size, in_graph):
    rows, n, k = size
    indices, (low, upper) = tf.constant(chosen(*size)), shortest(n, k)

    def run():
        words = custom_ops.encode_indices(indices, low, upper)
        return words, custom_ops.decode_indices(words, k, low, upper)

    words, back = tf.function(run)() if in_graph else run()
    assert words.shape == (rows, -(-(k * low + upper) // 32))
    np.testing.assert_array_equal(back, indices)


def test_indices_as_large_as_there_are():
    indices = np.array([[0, 2**24 + 1, 2**31 - 2]], np.int32)
    low, upper = shortest(2**31 - 1, 3)
    words = custom_ops.encode_indices(indices, low, upper)
    np.testing.assert_array_equal(custom_ops.decode_indices(words, 3, low, upper), indices)


@pytest.mark.parametrize("indices", [[[-1, 3]], [[3, 100]], [[9, 2**31 - 1]], [[8, 5]], [[9, 2]]])
def test_indices_that_do_not_fit_are_refused(indices):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must ascend"):
        custom_ops.encode_indices(indices, *shortest(10, 2))


def test_damaged_words_are_noticed():
    """A bit more or less in the field."""
    low, upper = shortest(1_000, 10)
    words = custom_ops.encode_indices(chosen(2, 1_000, 10), low, upper).numpy()
    field = range(10 * low, 10 * low + upper)
    for bit in (field[0], field[len(field) // 2], field[-1]):
        damaged = words.copy()
        damaged[1, bit // 32] ^= np.array([1 << (bit % 32)], np.uint32).view(np.int32)[0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not encode k=10 indices"):
            custom_ops.decode_indices(damaged, 10, low, upper)


@pytest.mark.parametrize("words, k, low, upper", [
    ([[0b01_10_00_11]], 2, 2, 6),  # 3 and, with the field's bits, less
    ([[0b100_11_00_11]], 2, 2, 6),
    ([[5, 2]], 1, 31, 4),  # 2^31 + 5
])  # fmt: skip
def test_words_of_what_no_one_encodes_are_refused(words, k, low, upper):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"do not encode k={k} indices"):
        custom_ops.decode_indices(words, k, low, upper)


def test_wrong_arguments_are_refused():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        custom_ops.encode_indices([1, 2], 0, 9)
    with pytest.raises(tf.errors.InvalidArgumentError, match="low_bits=32 must be at most 31"):
        custom_ops.encode_indices([[1, 2]], 32, 9)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be \[R, 1\]"):
        custom_ops.decode_indices([[1, 2]], 2, 3, 9)


def test_no_product_wraps():
    nothing = tf.zeros([2**30, 0], tf.int32)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        custom_ops.decode_indices(nothing, 2**40, 0, 0)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        custom_ops.encode_indices(nothing, 0, 2**40)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        custom_ops.encode_indices(tf.zeros([0, 2**62], tf.int32), 31, 9)


def test_any_number_of_rows_of_nothing():
    nothing = tf.zeros([2**40, 0], tf.int32)
    assert custom_ops.encode_indices(nothing, 0, 0).shape == [2**40, 0]
    assert custom_ops.decode_indices(nothing, 0, 0, 0).shape == [2**40, 0]


def test_numbers_of_rows_that_only_the_run_knows():
    indices, (low, upper) = chosen(3, 1_000, 10), shortest(1_000, 10)

    @tf.function(input_signature=[tf.TensorSpec([None, 10], tf.int32)])
    def run(indices):
        words = custom_ops.encode_indices(indices, low, upper)
        return custom_ops.decode_indices(words, 10, low, upper)

    np.testing.assert_array_equal(run(indices), indices)


def test_examples():
    assert doctest.testmod(coding).failed == 0
