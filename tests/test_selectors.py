"""Estimated selections: always K indices, most of them the right ones, and NaN is never hidden."""

import statistics

import numpy as np
import pytest
import tensorflow as tf

from tests.mstopk_reference import top_k
from tf_sparse_strategy.communication.selectors import SELECTORS, select

ESTIMATED = ("gaussian", "sampled")


def chosen(x, k, selector):
    values, indices = (part.numpy() for part in select(tf.constant(x), k, selector))
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis=-1), values)
    assert (np.diff(indices, axis=-1) > 0).all() and indices.shape == (*x.shape[:-1], k)
    return indices


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("n, k", [(1, 1), (2, 1), (7, 7), (100, 1), (1001, 10), (1001, 990)])
def test_exactly_k_distinct_ascending_indices(selector, n, k):
    rng = np.random.default_rng(n)
    for x in (rng.normal(size=n), np.zeros(n), np.ones(n), rng.standard_t(1, n), np.eye(1, n)[0]):
        chosen(x.astype(np.float32), k, selector)
    chosen(rng.normal(size=(3, n)).astype(np.float32), k, selector)


@pytest.mark.parametrize("selector", ESTIMATED)
def test_of_a_normal_distribution_most_are_the_largest(selector):
    """Counts within 3/4 and 5/4 of K leave out a quarter at most; a random choice would find one in 100."""
    x = np.random.default_rng(0).normal(size=(2, 100_000)).astype(np.float32)
    for row, indices in zip(x, chosen(x, 1000, selector), strict=True):
        assert len(set(indices) & set(top_k(row, 1000))) >= 700


@pytest.mark.parametrize("selector", SELECTORS)
def test_nothing_infinite_is_made_of_what_is_finite(selector):
    """TensorFlow's own search for it would end there."""
    tf.debugging.enable_check_numerics()
    try:
        chosen(np.array([1e3, -2, 0, 3], np.float32), 2, selector)
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_chosen(selector, bad):
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    x[999] = bad
    indices = select(tf.constant(x), 5, selector)[1].numpy()
    assert 999 in indices and len(set(indices)) == 5


def test_gaussian_is_the_quantile_of_the_normal_distribution():
    """Quantiles of it, symmetric: the threshold lies where 5 % are outside, and nothing is corrected."""
    points = (np.arange(1000) + 0.5) / 1000
    x = np.array([statistics.NormalDist().inv_cdf(p) for p in points], np.float32)
    assert set(chosen(x, 50, "gaussian")) <= set(range(27)) | set(range(973, 1000))


@pytest.mark.parametrize("selector", ESTIMATED)
def test_thresholds_are_corrected(selector):
    """Of heavy tails the first guess is far off; most of what is chosen is among the largest all the same."""
    x = np.random.default_rng(0).standard_t(2, 100_000).astype(np.float32)
    assert len(set(chosen(x, 1000, selector)) & set(top_k(x, 1000))) >= 700
