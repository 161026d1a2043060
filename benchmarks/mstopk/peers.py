"""Other ways to the same result: numpy's, TensorFlow's, and the paper's algorithm in TF ops."""

import numpy as np
import tensorflow as tf


def numpy_partition(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The fastest way in numpy: partition |x| for the threshold, then scan."""
    magnitudes = np.abs(x)
    threshold = np.partition(magnitudes, x.size - k)[x.size - k]
    indices = np.flatnonzero(magnitudes >= threshold)[:k]
    return x[indices], indices


@tf.function
def tf_top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` of |x|, and the values with their signs."""
    indices = tf.math.top_k(tf.abs(x), k, sorted=False).indices
    return tf.gather(x, indices), indices


@tf.function
def paper_in_tf_ops(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Algorithm 1 of the MSTopK paper, N = 30, line by line; fillers are taken from the lowest index on."""
    a = tf.abs(x)
    mean, largest = tf.reduce_mean(a), tf.reduce_max(a)
    left, right = tf.constant(0.0), tf.constant(1.0)
    k1, k2 = tf.constant(0, tf.int64), tf.size(x, tf.int64)
    upper, lower = tf.constant(0.0), tf.constant(0.0)
    k = tf.cast(k, tf.int64)
    for _ in tf.range(30):
        ratio = left + (right - left) / 2
        threshold = mean + ratio * (largest - mean)
        count = tf.math.count_nonzero(a >= threshold)
        if count <= k:
            right = ratio
            if count > k1:
                k1, upper = count, threshold
        else:
            left = ratio
            if count < k2:
                k2, lower = count, threshold
    above = tf.where(a >= upper)[:, 0]
    between = tf.where(tf.logical_and(a < upper, a >= lower))[:, 0]
    indices = tf.concat([above, between[: k - k1]], axis=0)
    return tf.gather(x, indices), indices
