"""The last part of a step of LARS: momentum, where the rate is known."""

from typing import NamedTuple

import tensorflow as tf

import custom_ops
from custom_ops.library import fits_cpu_alone


class MomentumStep(NamedTuple):
    """What moves w and its velocity v along the gradient g, as yet not done:

        u = rate (g + decay w),   v = momentum v + u,   w -= scale (momentum v + u if nesterov else v)

    Attributes:
      gradient: g, of the shape of w.
      rate: a scalar tensor.
      scale: a scalar tensor; None for 1, which would cost a pass over memory.
      decay: a scalar tensor.
      momentum: a number.
      nesterov: whether the step looks one step ahead.
    """

    gradient: tf.Tensor
    rate: tf.Tensor
    scale: tf.Tensor | None
    decay: tf.Tensor
    momentum: float
    nesterov: bool

    def values(self, w: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The new w and v."""
        growth = self.rate * (self.gradient + self.decay * w)
        velocity = self.momentum * v + growth
        move = self.momentum * velocity + growth if self.nesterov else velocity
        return w - (move if self.scale is None else self.scale * move), velocity

    def take(self, weights: tf.Variable, velocity: tf.Variable) -> None:
        """Gives two variables their new `values`, the same bits, in one pass over their memory."""
        scale = 1.0 if self.scale is None else self.scale
        custom_ops.momentum_update(
            weights, velocity, self.gradient, self.rate, scale, self.momentum, self.decay, self.nesterov
        )


def can_be_taken(dtype: tf.DType) -> bool:
    """Whether variables of `dtype` can be updated in place: on CPUs, if they are as precise as the step."""
    return dtype in (tf.float32, tf.float64) and fits_cpu_alone()
