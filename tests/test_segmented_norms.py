"""`custom_ops.segmented_norms` through TensorFlow; the algorithm has its own C++ tests."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.segmented_norms import segmented_norms as wrapper

SHAPES = [(3, 4), (0,), (), (5,), (2, 3, 7), (70_000,), (1, 1)]


def layers(dtype, shapes=SHAPES):
    rng = np.random.default_rng(0)
    make = [rng.normal(size=shape).astype(dtype) for shape in (*shapes, *shapes)]
    decays = [0.1 * (i % 3) for i in range(len(shapes))]
    return make[: len(shapes)], make[len(shapes) :], decays


def expected(weights, directions, decays):
    rows = []
    for w, x, c in zip(weights, directions, decays, strict=True):
        moved = (x + x.dtype.type(c) * w).astype(np.float64)
        rows.append([np.sum(w.astype(np.float64) ** 2), np.sum(moved**2)])
    return np.array(rows)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums(dtype, in_graph):
    weights, directions, decays = layers(dtype)
    run = custom_ops.segmented_norms
    if in_graph:
        run = tf.function(lambda w, x: custom_ops.segmented_norms(w, x, decays))
        got = run([tf.constant(w) for w in weights], [tf.constant(x) for x in directions])
    else:
        got = run(weights, directions, decays)
    assert got.dtype == tf.float64
    np.testing.assert_allclose(got, expected(weights, directions, decays), rtol=1e-12)


def test_the_check_can_fail():
    weights, directions, decays = layers(np.float32)
    got = custom_ops.segmented_norms(weights, directions, [0.0] * len(decays))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(got, expected(weights, directions, decays), rtol=1e-12)


def test_variables_are_read_where_they_lie():
    w = tf.Variable(tf.random.normal([1000, 100]))
    got = custom_ops.segmented_norms([w], [w], [0.0]).numpy()[0]
    assert got[0] == got[1] == pytest.approx(np.sum(w.numpy().astype(np.float64) ** 2))


def test_no_layers():
    assert custom_ops.segmented_norms([], [], []).shape == (0, 2)


def test_static_shape():
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([2, None])])
    def run(a, b):
        sums = custom_ops.segmented_norms([a, b], [a, b], [0.0, 0.0])
        assert sums.shape == (2, 2)
        return sums

    np.testing.assert_array_equal(run(tf.ones([3]), tf.ones([2, 2]))[:, 0], [3, 4])


@pytest.mark.parametrize(
    ("weights", "directions", "decays", "error", "word"),
    [
        ([[1.0]], [[1.0]], [], ValueError, "0 decays"),
        ([[1.0]], [[1.0, 2.0]], [0.0], tf.errors.InvalidArgumentError, "directions.0."),
        ([[[1.0, 2.0]]], [[[1.0], [2.0]]], [0.0], tf.errors.InvalidArgumentError, "agree"),
    ],
)
def test_errors(weights, directions, decays, error, word):
    with pytest.raises(error, match=word):
        custom_ops.segmented_norms(weights, directions, decays)


def test_shapes_are_compared_while_tracing():
    @tf.function
    def run():
        return custom_ops.segmented_norms([tf.ones([2])], [tf.ones([3])], [0.0])

    with pytest.raises(ValueError, match="must be equal"):
        run()


def test_a_nan_stays_in_its_layer():
    sums = custom_ops.segmented_norms([[1.0], [2.0]], [[np.nan], [3.0]], [0.0, 0.0]).numpy()
    assert np.isnan(sums).tolist() == [[False, True], [False, False]]


def test_docs():
    names = {"segmented_norms": custom_ops.segmented_norms}
    assert doctest.testmod(wrapper, extraglobs=names) == (0, 2)
