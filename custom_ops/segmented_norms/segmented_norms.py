"""Sums of squares of the weights and directions of many layers, in one read."""

import functools
import pathlib
import types
from collections.abc import Sequence

import tensorflow as tf

_LIBRARY = pathlib.Path(__file__).with_name("segmented_norms_ops.so")


@functools.cache
def _ops() -> types.ModuleType:
    """The compiled operation; loaded at the first call, not at import."""
    if not _LIBRARY.exists():
        raise ImportError(
            f"custom_ops.segmented_norms: {_LIBRARY.name} is not in {_LIBRARY.parent}: run `make "
            "setup` in the checkout to build it, or install the wheel, which contains it."
        )
    return tf.load_op_library(str(_LIBRARY))


def segmented_norms(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """Sums up w² and (x + c w)² for each of L layers.

    Sums are kept in float64 in a fixed order: the relative error is below N 2^-53 for N elements,
    nothing overflows, and the result depends neither on threads nor on the instruction set. NaN and
    infinity propagate. Cost: one read of each tensor; x + c w is never stored. CPU only; no gradient.

    Args:
      weights: w, L tensors of float32, or L of float64, any shapes, 0 elements included.
      directions: x, L tensors of the same dtype and shapes.
      decays: c, L numbers, e.g. weight decays; 0 for the plain sum of squares of x.

    Returns:
      float64 [L, 2].

    Raises:
      ValueError: the three differ in length.
      tf.errors.InvalidArgumentError: a weight and its direction differ in shape.

    Example:
      >>> sums = segmented_norms([tf.constant([3.0, 4.0])], [tf.constant([1.0, 1.0])], [1.0])
      >>> sums.numpy().tolist()
      [[25.0, 41.0]]
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
