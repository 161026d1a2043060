"""The sums of squares behind layer-wise rates."""

from collections.abc import Sequence

import tensorflow as tf


def sums_of_squares(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """Σ w² and Σ (x + c w)² of each layer.

    Args:
      weights: w, L tensors.
      directions: x, L tensors of the shapes of `weights`.
      decays: c, L numbers.

    Returns:
      float64 [L, 2].
    """
    if not weights:
        return tf.zeros([0, 2], tf.float64)
    rows = [
        [_sum_of_squares(w), _sum_of_squares(x + c * w if c else x)]
        for w, x, c in zip(weights, directions, decays, strict=True)
    ]
    return tf.reshape(tf.stack([tf.cast(s, tf.float64) for row in rows for s in row]), [-1, 2])


def _sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    return 2 * tf.nn.l2_loss(x)
