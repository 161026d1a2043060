"""Pieces of a table are those of the whole, whatever the pieces."""

import doctest

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.embedding import drawing

INITIALIZERS = {
    "uniform": lambda seed: keras.initializers.RandomUniform(-0.3, 0.7, seed),
    "normal": lambda seed: keras.initializers.RandomNormal(0.5, 2.0, seed),
}


def in_pieces(initializer, shape, step):
    recipe = drawing.recipe_of(initializer, "float32")
    pieces = [
        drawing.rows(recipe, shape[1], first, min(first + step, shape[0]))
        for first in range(0, shape[0], step)
    ]
    return np.concatenate(pieces)


@pytest.mark.parametrize("step", [1, 3, 4, 1000])
@pytest.mark.parametrize("seed", [0, 7, 2**31 - 2, 2**32 - 1, 2**40, -5])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (50, 3), (33, 64)])
@pytest.mark.parametrize("kind", INITIALIZERS)
def test_pieces_are_those_of_the_whole(kind, shape, seed, step):
    initializer = INITIALIZERS[kind](seed)
    np.testing.assert_array_equal(in_pieces(initializer, shape, step), initializer(shape))


@pytest.mark.parametrize("kind", INITIALIZERS)
def test_a_large_table(kind):
    """Beyond what one of TensorFlow's threads draws at a time."""
    initializer = INITIALIZERS[kind](None)  # Keras draws a seed
    whole = initializer((300_001, 7)).numpy()
    part = drawing.rows(drawing.recipe_of(initializer, "float32"), 7, 200_003, 250_001)
    np.testing.assert_array_equal(part, whole[200_003:250_001])


def test_another_count_is_found(monkeypatch):
    """Negative control."""
    monkeypatch.setattr(drawing, "GROUP", 2)
    initializer = INITIALIZERS["uniform"](7)
    assert not np.array_equal(in_pieces(initializer, (50, 4), 3), initializer((50, 4)))


@pytest.mark.parametrize(
    ("initializer", "dtype"),
    [
        (keras.initializers.GlorotUniform(seed=1), "float32"),
        (keras.initializers.TruncatedNormal(seed=1), "float32"),
        (keras.initializers.RandomUniform(seed=1), "float16"),
        (keras.initializers.RandomUniform(seed=1), tf.float64),
        (keras.initializers.RandomUniform(seed=keras.random.SeedGenerator(1)), "float32"),
        (keras.initializers.RandomNormal(mean=[0.0, 1.0], seed=1), "float32"),
        (lambda shape, dtype: tf.zeros(shape, dtype), "float32"),
    ],
)
def test_what_only_the_whole_gives(initializer, dtype):
    assert drawing.recipe_of(initializer, dtype) is None


def test_classes_of_ones_own_draw_the_whole():
    class Shifted(keras.initializers.RandomUniform):
        def __call__(self, shape, dtype=None):
            return 1 + super().__call__(shape, dtype)

    assert drawing.recipe_of(Shifted(seed=1), "float32") is None


@pytest.mark.parametrize("number", [np.float32(0.3), np.float64(0.3), tf.constant(0.3), 1])
def test_numbers_of_any_kind(number):
    for initializer in (
        keras.initializers.RandomUniform(-0.1, number, seed=1),
        keras.initializers.RandomNormal(0.1, number, seed=1),
    ):
        np.testing.assert_array_equal(in_pieces(initializer, (9, 5), 2), initializer((9, 5)))


def test_docs():
    assert doctest.testmod(drawing) == (0, 4)
