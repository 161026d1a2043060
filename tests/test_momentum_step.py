"""Momentum in place and by values: the same bits, alone and under LARS."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lars_pto
from custom_ops import library
from lars_pto import momentum_step
from lars_pto.lars_rule import VARIANTS
from lars_pto.momentum_step import MomentumStep


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 333)])
def test_taken_is_its_values(shape, dtype, nesterov, scaled):
    w, v, g = np.random.default_rng(1).standard_normal((3, *shape)).astype(dtype)
    rate, scale, decay = (tf.constant(number, dtype) for number in (0.3, 0.7, 0.01))
    step = MomentumStep(tf.constant(g), rate, scale if scaled else None, decay, 0.9, nesterov)
    expected = step.values(tf.constant(w), tf.constant(v))
    variables = tf.Variable(w), tf.Variable(v)
    step.take(*variables)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(variable, value)


def trained(variant, nesterov):
    """Weights and velocities after some steps, of layers with and without their own rate."""
    rng = np.random.default_rng(2)
    start = [rng.standard_normal(shape, np.float32) for shape in [(40, 30), (30,), (7, 5)]]
    variables = [keras.Variable(w, name=f"layer{i}") for i, w in enumerate(start)]
    optimizer = lars_pto.LARS(0.5, weight_decay=0.01, variant=variant, nesterov=nesterov)
    optimizer.build(variables)

    @tf.function
    def apply(*gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(4):
        gradients = [rng.standard_normal(w.shape, np.float32) for w in start[:2]]
        apply(*map(tf.constant, gradients), tf.zeros([7, 5]))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lars_in_place_is_lars_by_values(monkeypatch, variant, nesterov):
    assert momentum_step.can_be_taken(tf.float32)
    in_place = trained(variant, nesterov)
    monkeypatch.setattr(momentum_step, "can_be_taken", lambda dtype: False)
    for one, other in zip(in_place, trained(variant, nesterov), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_wrong_factor_shows(monkeypatch):
    """Negative control."""
    right = trained("classic", False)
    take = MomentumStep.take
    monkeypatch.setattr(MomentumStep, "take", lambda step, w, v: take(step._replace(momentum=0.8), w, v))
    assert not np.array_equal(right[0], trained("classic", False)[0])


def test_where_steps_are_taken_in_place(monkeypatch):
    dtypes = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
    assert [d for d in dtypes if momentum_step.can_be_taken(d)] == [tf.float32, tf.float64]
    monkeypatch.setattr(momentum_step, "fits_cpu_alone", lambda: False)
    assert not momentum_step.can_be_taken(tf.float32)


def test_where_keras_would_compile_by_itself(monkeypatch):
    """With a GPU that is there but hidden, and no strategy: for XLA our operations have no kernels."""
    assert library.fits_cpu_alone()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    assert not library.fits_cpu_alone()
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        assert library.fits_cpu_alone()


@pytest.mark.parametrize("in_place", [True, False])
def test_variables_keep_their_memory(monkeypatch, in_place):
    """Nobody else holds their values; by values, the control, they are elsewhere after each step."""
    monkeypatch.setattr(momentum_step, "can_be_taken", lambda dtype: in_place)
    variable = keras.Variable(np.ones((1000, 100), np.float32))
    optimizer = lars_pto.LARS(0.1)
    optimizer.build([variable])
    apply = tf.function(lambda g: optimizer.apply_gradients([(g, variable)]))
    gradient = tf.ones([1000, 100])
    apply(gradient)
    before = address(variable)
    apply(gradient)
    assert (address(variable) == before) == in_place


def address(variable) -> int:
    """Where the variable's value lies: a view does not copy it."""
    return np.asarray(memoryview(variable.value.read_value())).ctypes.data
