"""Sums of squares of the weights and directions of many layers, in one read."""

from collections.abc import Sequence

import tensorflow as tf

from custom_ops.library import library

_ops = library(__file__)


def segmented_norms(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """Sums up w² and (x + c w)² for each of L layers.

    Sums are kept in float64 in a fixed order: of float32 the relative error is below N 2^-53 for N
    elements and nothing overflows, and the result depends neither on threads nor on the instruction set.
    NaN and infinity propagate; denormal numbers count as 0 where TensorFlow's threads flush them. Cost: one
    read of each tensor; x + c w is never stored. CPU only; no gradient.

    Args:
      weights: w, L tensors of float32, or L of float64, any shapes, 0 elements included.
      directions: x, L tensors of the same dtype and shapes.
      decays: c, L numbers, e.g. weight decays; 0 for the plain sum of squares of x, where w is finite.

    Returns:
      float64 [L, 2].

    Raises:
      ValueError: the three differ in length.
      tf.errors.InvalidArgumentError: tensors differ in dtype, or a weight and its direction in shape (while
        tracing TypeError, ValueError).

    Example:
      >>> sums = segmented_norms([tf.constant([3.0, 4.0])], [tf.constant([1.0, 1.0])], [1.0])
      >>> sums.numpy().tolist()
      [[25.0, 41.0]]

    Source: this library; for the ratios of LARS and LAMB.
    """
    if not len(weights) == len(directions) == len(decays):
        raise ValueError(
            f"segmented_norms got {len(weights)} weights, {len(directions)} directions and "
            f"{len(decays)} decays; pass one of each for every layer."
        )
    if not weights:
        return tf.zeros([0, 2], tf.float64)
    weights = [tf.convert_to_tensor(w) for w in weights]
    return _ops().segmented_norms(
        weights=weights, directions=directions, decays=tf.constant(decays, weights[0].dtype)
    )
