"""`custom_ops.momentum_update` through TensorFlow; the algorithm has its own C++ tests."""

import doctest
import threading

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.momentum_update import momentum_update as wrapper

FACTORS = {"rate": 0.3, "scale": 0.7, "momentum": 0.9, "decay": 0.01}


def drawn(shape, dtype=np.float32):
    return list(np.random.default_rng(0).standard_normal((3, *shape), dtype))


def by_tensorflow(w, v, g, rate, scale, momentum, decay, nesterov):
    """The formula in operations of their own; in a graph they may not be fused."""
    u = rate * (tf.constant(g) + decay * w)
    v = momentum * v + u
    return w - scale * (momentum * v + u if nesterov else v), v


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 7), (200_001,)])
def test_same_bits_as_tensorflows_operations(shape, dtype, nesterov, in_graph):
    w, v, g = drawn(shape, dtype)
    weights, velocity = tf.Variable(w), tf.Variable(v)

    def step(gradient):
        custom_ops.momentum_update(weights, velocity, gradient, **FACTORS, nesterov=nesterov)

    (tf.function(step) if in_graph else step)(tf.constant(g))
    expected = by_tensorflow(w, v, g, **FACTORS, nesterov=nesterov)
    np.testing.assert_array_equal(weights, expected[0])
    np.testing.assert_array_equal(velocity, expected[1])


def test_each_factor_counts():
    """Negative control: another value of any is another result."""
    w, v, g = drawn((5,))
    expected = by_tensorflow(w, v, g, **FACTORS, nesterov=False)[0].numpy()
    for factor in FACTORS:
        weights = tf.Variable(w)
        custom_ops.momentum_update(weights, tf.Variable(v), g, **{**FACTORS, factor: 0.5})
        assert not np.array_equal(weights, expected), factor


def test_values_that_were_read_before_stay():
    weights, velocity = tf.Variable([1.0]), tf.Variable([2.0])
    before = weights.read_value(), velocity.read_value()
    custom_ops.momentum_update(weights, velocity, [1.0], rate=1.0)
    assert (float(before[0][0]), float(before[1][0])) == (1.0, 2.0)
    assert float(weights[0]) == pytest.approx(1 - 2.8)


def test_reads_and_writes_of_a_function_keep_their_order():
    weights, velocity = tf.Variable(tf.ones([1000])), tf.Variable(tf.zeros([1000]))

    @tf.function
    def steps():
        seen = []
        for _ in range(3):
            seen.append(tf.reduce_sum(weights))
            custom_ops.momentum_update(weights, velocity, weights.read_value(), rate=0.5, momentum=0.0)
        weights.assign_add(tf.ones([1000]))
        return [*seen, tf.reduce_sum(weights)]

    assert [float(x) for x in steps()] == [1000, 500, 250, 1125]


def test_a_variable_that_is_scattered_into():
    """Such variables copy what is read."""
    weights, velocity = tf.Variable([[1.0], [2.0]]), tf.Variable([[0.0], [0.0]])
    weights.scatter_update(tf.IndexedSlices([[4.0]], [1]))
    before = weights.read_value()
    custom_ops.momentum_update(weights, velocity, [[1.0], [1.0]], rate=1.0)
    assert weights.numpy().tolist() == [[0.0], [3.0]]
    assert before.numpy().tolist() == [[1.0], [4.0]]


def test_a_condition_around_it():
    weights, velocity = tf.Variable([1.0]), tf.Variable([0.0])

    @tf.function
    def step(really):
        def update():
            custom_ops.momentum_update(weights, velocity, [1.0], rate=1.0)

        tf.cond(really, update, lambda: None)

    step(tf.constant(False))
    assert float(weights[0]) == 1
    step(tf.constant(True))
    assert float(weights[0]) == 0


def test_two_functions_that_update_the_same_two_the_other_way_round():
    """They lock both variables: in another order they would wait for each other for ever."""
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]
    together = threading.Barrier(2)

    @tf.function
    def step(first, second):
        custom_ops.momentum_update(first, second, [1.0], rate=0.0, scale=0.0, momentum=1.0)

    def many(first, second):
        step(first, second)
        together.wait()
        for _ in range(3000):
            step(first, second)

    orders = variables, variables[::-1]
    threads = [threading.Thread(target=many, args=order, daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [float(v[0]) for v in variables] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gradient": [1.0, 2.0]}, "shape"),
        ({"velocity": tf.Variable([1.0, 2.0])}, "shape"),
        ({"rate": [1.0, 2.0]}, "scalar|rank 0"),
    ],
)
def test_wrong_shapes(arguments, words):
    given = {"weights": tf.Variable([1.0]), "velocity": tf.Variable([1.0]), "gradient": [1.0], "rate": 1.0}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=words):
        custom_ops.momentum_update(**{**given, **arguments})
    with pytest.raises(ValueError, match=words):
        tf.function(lambda: custom_ops.momentum_update(**{**given, **arguments}))()
    assert float(given["weights"][0]) == 1


def test_one_variable_twice():
    weights = tf.Variable([1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="one variable"):
        custom_ops.momentum_update(weights, weights, [1.0], rate=1.0)


def test_docs():
    assert doctest.testmod(wrapper, extraglobs={"momentum_update": custom_ops.momentum_update}) == (0, 3)
