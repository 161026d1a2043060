"""The last part of a step of LARS: momentum, where the rate is known."""

from typing import NamedTuple

import tensorflow as tf

import custom_ops
from custom_ops.library import on_gpu


class MomentumStep(NamedTuple):
    """What moves w and its velocity v along the gradient g, as yet not done:

        u = rate (g + decay w),   v = momentum v + u,   w -= scale (momentum v + u if nesterov else v)

    Attributes:
      gradient: g, of the shape of w.
      rate: a scalar tensor.
      scale: a scalar tensor.
      decay: a scalar tensor.
    """

    gradient: tf.Tensor
    rate: tf.Tensor
    scale: tf.Tensor
    decay: tf.Tensor

    def values(
        self, w: tf.Tensor, v: tf.Tensor, momentum: float, nesterov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The new w and v."""
        growth = self.rate * (self.gradient + self.decay * w)
        velocity = momentum * v + growth
        return w - self.scale * (momentum * velocity + growth if nesterov else velocity), velocity

    def take(self, weights: tf.Variable, velocity: tf.Variable, momentum: float, nesterov: bool) -> None:
        """Gives two variables their new `values`, the same bits, in one pass over their memory."""
        custom_ops.momentum_update(
            weights, velocity, self.gradient, self.rate, self.scale, momentum, self.decay, nesterov
        )


def can_be_taken(dtype: tf.DType) -> bool:
    """Whether variables of `dtype` can be updated in place: on CPUs, if they are as precise as the step."""
    return dtype in (tf.float32, tf.float64) and not on_gpu()
