"""Messages arrive as they were sent, whatever their coding, and have the size that was promised."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.communication.packing import INDEX_CODINGS, WIRE_DTYPES, Packing

SIZES = [(1, 1), (2, 1), (7, 3), (64, 64), (100, 1), (1000, 10), (1000, 999), (4097, 33)]


def indices_of(kind, n, k, rng):
    chosen = {
        "random": lambda: np.sort(rng.permutation(n)[:k]),
        "first": lambda: np.arange(k),
        "last": lambda: np.arange(n - k, n),
    }
    return chosen[kind]().astype(np.int32)


@pytest.mark.parametrize("kind", ["random", "first", "last"])
@pytest.mark.parametrize("coding", INDEX_CODINGS)
@pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)
@pytest.mark.parametrize("n, k", SIZES)
def test_round_trip(n, k, wire_dtype, coding, kind):
    rng = np.random.default_rng(n + k)
    packing = Packing(n, k, wire_dtype, coding)
    indices = np.stack([indices_of(kind, n, k, rng) for _ in range(3)])
    values = rng.integers(-99, 100, (3, k)).astype(np.float32)  # exact in 16 bits
    messages = packing.pack(tf.constant(values), tf.constant(indices), tf.constant(True))
    assert messages.dtype == tf.int32 and messages.shape == (3, packing.words)
    got_values, got_indices, finite = packing.unpack(tf.reshape(messages, [-1]))
    np.testing.assert_array_equal(got_values, values)
    np.testing.assert_array_equal(got_indices, indices)
    assert bool(finite)


@pytest.mark.parametrize("n", [2**24 + 3, 2**31 - 1])
@pytest.mark.parametrize("coding", INDEX_CODINGS)
def test_indices_that_floats_cannot_hold(n, coding):
    indices = tf.constant([[0, 2**24 + 1, n - 1]], tf.int32)
    k = 3
    if coding == "delta":  # a bit field of N/2^l = K to 2 K bits, however large N is
        assert Packing(n, k, None, coding).words < 10
    packing = Packing(n, k, None, coding)
    message = packing.pack(tf.ones([1, k]), indices, tf.constant(True))
    np.testing.assert_array_equal(packing.unpack(message)[1], indices)


def test_too_many_elements_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"n=2147483648 .*int32 indices.*Split the variable"):
        Packing(2**31, 1)


@pytest.mark.parametrize("k", [0, 5])
def test_a_message_is_neither_empty_nor_longer_than_the_vector(k):
    with pytest.raises(ValueError, match=f"k={k} of n=4"):
        Packing(4, k)


def test_one_bad_contribution_makes_all_bad():
    packing = Packing(8, 1)
    good, bad = (packing.pack(tf.ones([1, 1]), tf.constant([[3]]), tf.constant(f)) for f in (True, False))
    assert bool(packing.unpack(tf.concat([good, good], 0))[2])
    assert not bool(packing.unpack(tf.concat([good, bad, good], 0))[2])


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_what_arrives_and_what_is_lost_make_the_whole(wire_dtype):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(1, 1000)) * 10.0 ** rng.integers(-9, 4, 1000)).astype(np.float32)
    packing = Packing(1000, 1000, wire_dtype)
    message = packing.pack(tf.constant(values), tf.range(1000)[tf.newaxis], tf.constant(True))
    arrived, lost = packing.unpack(message)[0].numpy(), packing.lost(tf.constant(values)).numpy()
    assert (lost != 0).any()
    np.testing.assert_array_equal(arrived.astype(np.float64) + lost, values)
    assert Packing(1000, 1000).lost(tf.constant(values)) is None


@pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)
def test_finite_stays_finite_and_the_rest_does_not(wire_dtype):
    values = np.float32([[1e38, -3.4e38, np.inf, -np.inf, np.nan]])
    packing = Packing(5, 5, wire_dtype)
    message = packing.pack(tf.constant(values), tf.range(5)[tf.newaxis], tf.constant(True))
    arrived = packing.unpack(message)[0].numpy()
    np.testing.assert_array_equal(np.isfinite(arrived), np.isfinite(values))
    np.testing.assert_array_equal(np.sign(arrived), np.sign(values))


@pytest.mark.parametrize("density", [0.001, 0.01, 0.02, 0.05])
def test_delta_is_within_a_tenth_of_the_entropy(density):
    n = 1_000_000
    k = int(n * density)
    coded = Packing(n, k, None, "delta").words - Packing(n, k, None, "delta").k - 1
    entropy = -math.log2(density) - (1 - density) / density * math.log2(1 - density)
    assert entropy <= 32 * coded / k <= 1.1 * entropy
