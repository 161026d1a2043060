"""What DeAR may overlap: each layer waits for its own weights, each bucket's sum for its own gradients."""

import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess.overlap_runs import custom_step

WIDTH, LAYERS = 4, 3


def dense(scope):
    """A bucket for each of the kernels; no biases."""
    with scope():
        layers = [keras.layers.Dense(WIDTH, "tanh", use_bias=False) for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def ancestors(op):
    """All operations that run before `op`."""
    found, waiting = set(), [op]
    while waiting:
        last = waiting.pop()
        before = {x.op for x in last.inputs} | set(last.control_inputs)
        waiting += before - found
        found |= before
    return found


def test_what_waits_for_what(partners):
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=1))
    model, optimizer = dense(strategy.scope)
    graph = custom_step(strategy, model, optimizer).get_concrete_function(tf.ones([2, WIDTH])).graph
    ops = graph.get_operations()
    gathers, reads = [], []
    for variable in model.trainable_variables:
        handle = next(
            inside for outside, inside in graph.captures if outside is variable.value.values[0].handle
        )
        using = [op for op in ops if any(x is handle for x in op.inputs)]
        gathers.append(next(op for op in using if op.type == "If"))
        reads.append(next(op for op in using if op.type == "ReadVariableOp"))
    for layer, read in enumerate(reads):
        needed = ancestors(read)
        assert [gather in needed for gather in gathers] == [i <= layer for i in range(LAYERS)]
    sums = [op for op in ops if op.type == "HorovodAlltoall"]
    assert len(sums) == LAYERS
    for number, op in enumerate(sums):  # the last layer's first
        before = ancestors(op)
        assert not before & set(sums)
        products = [o for o in before if o.type == "MatMul"]
        assert len(products) == LAYERS + 1 + number  # forward, back to this layer, its own gradient


def test_weights_are_gathered_while_a_layer_computes(comm, partners):
    """The first layer does not end before the second's weights are there, and so on: no clock is needed."""
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=1))
    sites = strategy.extended.collectives.sites
    waited = []

    def gathered(number):
        place = f"weights_1_{number}.all_gather"
        return sum(int(site[5]) for name, site in sites.sites() if name.startswith(place))

    class Patient(keras.layers.Layer):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def build(self, shape):
            self.scale = self.add_weight(shape=(WIDTH,), initializer="ones")

        def wait(self, x):
            steps, deadline = optimizer_steps[0], time.monotonic() + 20
            while gathered(self.number + 1) < steps and time.monotonic() < deadline:
                time.sleep(0.01)
            waited.append(time.monotonic() < deadline)
            return x

        def call(self, x):
            y = x * self.scale
            if self.number == LAYERS - 1:
                return y
            done = tf.numpy_function(self.wait, [tf.stop_gradient(y)], tf.float32, stateful=False)
            return y + 0 * tf.ensure_shape(done, y.shape)

    optimizer_steps = [0]
    with strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), *(Patient(i) for i in range(LAYERS))])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    step = custom_step(strategy, model, optimizer)
    for number in range(3):
        optimizer_steps[0] = number  # nothing is gathered in the first
        step(tf.ones([2, WIDTH]))
    strategy.synchronize()
    assert waited == [True] * 3 * (LAYERS - 1)
    assert np.all(np.isfinite(model.get_weights()[0]))
