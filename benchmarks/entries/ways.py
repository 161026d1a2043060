"""Ways to add up messages of entries into one vector, and to replace entries of a vector."""

import numpy as np
import tensorflow as tf

import custom_ops

OURS = {"add": "sum_entries", "replace": "replace_entries"}


def made(n: int, k: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(values [rows, k], indices [rows, k], which ascend and are distinct in each row)."""
    rng = np.random.default_rng(n)
    indices = [np.sort(rng.choice(n, k, replace=False)).astype(np.int32) for _ in range(rows)]
    return rng.normal(size=[rows, k]).astype(np.float32), np.stack(indices)


def adding(n: int, k: int, rows: int) -> dict:
    """By name: functions of nothing; each gives the same [n]."""
    values, indices = map(tf.constant, made(n, k, rows))

    @tf.function
    def sum_entries():
        return custom_ops.sum_entries(values[tf.newaxis], indices[tf.newaxis], n)[0]

    @tf.function
    def scatter():
        total = tf.zeros([n])
        for where, what in zip(tf.unstack(indices), tf.unstack(values), strict=True):
            total = tf.tensor_scatter_nd_add(total, where[:, tf.newaxis], what)
        return total

    @tf.function
    def segments():
        return tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), tf.reshape(indices, [-1]), n)

    def numpy():
        total = np.zeros(n, np.float32)
        for where, what in zip(indices.numpy(), values.numpy(), strict=True):
            total[where] += what  # distinct in a row
        return total

    return {
        OURS["add"]: sum_entries,
        "tf.tensor_scatter_nd_add": scatter,
        "tf.math.unsorted_segment_sum": segments,
        "numpy, total[indices] += values": numpy,
        "tf.fill, nothing added": tf.function(lambda: tf.fill([n], values[0, 0])),  # zeros would be no work
    }


def replacing(n: int, k: int) -> dict:
    """By name: functions of nothing; each makes a vector [n] and puts zeros at k places."""
    _, indices = map(tf.constant, made(n, k, 1))
    x = tf.random.stateless_normal([1, n], [1, 2])

    @tf.function
    def replace_entries():
        return custom_ops.replace_entries(2.0 * x, indices, 0.0)

    @tf.function
    def scatter():
        return tf.tensor_scatter_nd_update(2.0 * x[0], indices[0][:, tf.newaxis], tf.zeros([k]))

    return {
        OURS["replace"]: replace_entries,
        "tf.tensor_scatter_nd_update": scatter,
        "nothing replaced": tf.function(lambda: 2.0 * x),
    }
