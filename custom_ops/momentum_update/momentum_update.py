"""A step of momentum on a variable and its velocity, in place."""

from typing import Any

import tensorflow as tf

from custom_ops.library import library

_ops = library(__file__)


def momentum_update(
    weights: tf.Variable,
    velocity: tf.Variable,
    gradient: tf.Tensor,
    rate: Any,
    scale: Any = 1.0,
    momentum: Any = 0.9,
    decay: Any = 0.0,
    nesterov: bool = False,
) -> None:
    """Moves `weights` w by `velocity` v along `gradient` g:

        u = rate (g + decay w),   v = momentum v + u,   w -= scale (momentum v + u if nesterov else v)

    rounded after each operation, as TensorFlow's own would: the same bits, denormals apart. Cost: one read of
    the three, one write of w and v; no other memory, unless somebody still holds a value that was read from a
    variable: that stays as it is, and the new one lies elsewhere. CPU only; no gradient.

    When not to use it: under XLA (`jit_compile=True`), which has no kernel for it and fuses such steps
    itself.

    Args:
      weights: w, float32 or float64, any shape.
      velocity: v, of the same dtype and shape.
      gradient: g, the same.
      rate: a scalar, as the next three: numbers, or tensors, which are cast to the dtype of w.
      scale: default 1.
      momentum: default 0.9.
      decay: default 0.
      nesterov: whether the step looks one step ahead; default False.

    Raises:
      tf.errors.InvalidArgumentError: shapes or dtypes differ (while tracing ValueError, TypeError), a factor
        is no scalar, or both are one variable.

    Example:
      >>> w, v = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 4.0])
      >>> momentum_update(w, v, tf.constant([1.0, 1.0]), rate=0.5, momentum=0.25)
      >>> w.numpy().tolist(), v.numpy().tolist()
      ([0.5, 0.5], [0.5, 1.5])
    """
    dtype = weights.dtype
    factors = {"rate": rate, "scale": scale, "momentum": momentum, "decay": decay}
    _ops().momentum_update(
        weights=weights.handle,
        velocity=velocity.handle,
        gradient=gradient,
        nesterov=nesterov,
        # The hint keeps all digits of Python's numbers.
        **{name: tf.cast(tf.convert_to_tensor(x, dtype_hint=dtype), dtype) for name, x in factors.items()},
    )
