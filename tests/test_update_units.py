"""Layers' ratios as LARS tells them, and what they weigh elements by."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lars_pto
from lars_pto import legacy_keras
from lars_pto.lars_rule import VARIANTS
from tf_sparse_strategy.update_units import weights

LARS = {"keras": (keras, lars_pto.LARS), "tf_keras": (tf_keras, legacy_keras.LARS)}


def dense_layer(module):
    """Kernel of norm 5, bias of norm 2."""
    layer = module.layers.Dense(2)
    layer.build((None, 2))
    layer.set_weights([np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([2.0, 0.0])])
    return layer


@pytest.mark.parametrize("bounds", [None, (0.0, 0.001)])
@pytest.mark.parametrize("module, make", LARS.values(), ids=LARS)
def test_lars_tells_its_ratios(module, make, bounds):
    """r = η‖w‖ / (‖g‖ + λ‖w‖), 1 for vectors; nothing is known of a layer without gradient."""
    kernel, bias = dense_layer(module).trainable_variables
    optimizer = make(8.0, weight_decay=0.1, trust_coefficient=0.01, ratio_bounds=bounds)
    if module is keras:
        optimizer.build([kernel, bias])
    ratio = 0.01 * 5 / (2 + 0.1 * 5) if bounds is None else 0.001
    found = optimizer.update_units([bias, kernel], tf.constant([9.0, 4.0]))
    np.testing.assert_allclose(found, [1, ratio], 1e-6)
    np.testing.assert_array_equal(optimizer.update_units([kernel, bias], tf.zeros([2])), [0, 0])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("module, make", LARS.values(), ids=LARS)
def test_a_first_step_is_units_times_gradient(module, make, variant):
    """Without decay, whatever the convention."""
    layer = dense_layer(module)
    before = [np.array(w) for w in layer.get_weights()]
    gradients = [tf.constant([[0.5, 0.0], [1.0, 2.0]]), tf.constant([1.0, 3.0])]
    optimizer = make(0.25, weight_decay=None, variant=variant)
    pairs = list(zip(gradients, layer.trainable_variables, strict=True))
    if module is keras:
        optimizer.build(layer.trainable_variables)
    squares = tf.stack([tf.reduce_sum(g**2) for g in gradients])
    units = optimizer.update_units(layer.trainable_variables, squares).numpy()
    optimizer.apply_gradients(pairs)
    for old, new, unit, gradient in zip(before, layer.get_weights(), units, gradients, strict=True):
        np.testing.assert_allclose(old - new, 0.25 * unit * gradient, rtol=1e-4, atol=1e-7)


def test_other_optimizers_have_none():
    """LAMB's moves are not in proportion to a gradient."""
    kinds = (keras.optimizers.SGD, lars_pto.LAMB, tf_keras.optimizers.SGD, legacy_keras.LAMB)
    for optimizer in (kind() for kind in kinds):
        assert not hasattr(optimizer, "update_units")


@pytest.mark.parametrize("variant", VARIANTS)
def test_decay_counts(variant):
    """Orthogonal to the gradient: for conventions of one norm a root of squares, for others a sum."""
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    layer.set_weights([np.array([[3.0], [0.0]])])
    optimizer = lars_pto.LARS(1.0, weight_decay=0.5, variant=variant, momentum=0.0)
    optimizer.build(layer.trainable_variables)
    [unit] = optimizer.update_units(layer.trainable_variables, tf.constant([4.0])).numpy()
    norm = np.hypot(2, 1.5) if variant in ("joint_norm", "after_momentum") else 2 + 1.5
    np.testing.assert_allclose(unit, 0.001 * 3 / norm, rtol=1e-6)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_of_what_is_zero_or_not_finite_the_least_is_taken(bad):
    """All entries that are not finite come first, whatever weighs them, as long as it is above 0.

    Of what is, the largest weighs 1, and of the sum of four workers, 4^1.5 times the squares are told.
    """
    pairs = [
        (tf.constant([3.0, 4.0], tf.float16), "a"),
        (tf.constant(bad), "b"),
        (tf.zeros([0, 2]), "c"),
        (tf.constant([[2.0]]), "d"),
    ]

    def units_of(variables, squares):
        assert variables in (["a", "b", "c", "d"], ["b", "c"])
        return squares

    np.testing.assert_allclose(weights(units_of, pairs, 1), [1, 1, 0.16, 0.16], rtol=1e-6)
    np.testing.assert_array_equal(weights(units_of, pairs[1:3], 1), [1])
    told = weights(lambda _, squares: tf.where(squares == 8 * 25, 1.0, 0.5), pairs, 4)
    np.testing.assert_array_equal(told[:2], [1, 1])
