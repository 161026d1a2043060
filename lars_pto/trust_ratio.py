"""The layer-wise trust ratio, and what an update rule and an optimizer hand each other."""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from lars_pto.momentum_step import MomentumStep

Change = tuple[tf.Tensor, ...] | MomentumStep  # the new values of weights and slots, or what gives them


class Begun(NamedTuple):
    """What a rule wants measured before it can finish the update of one tensor.

    Attributes:
      measured: x, the tensor with the shape of w whose norm divides the norm of w.
      measured_decay: c; the norm is that of x + c w, which one pass over x and w can sum up.
      slots: the new slots where they do not depend on the norms, else the old ones.
    """

    measured: tf.Tensor
    measured_decay: float
    slots: tuple[tf.Tensor, ...]


class Rule(Protocol):
    """An update rule with layer-wise rates: pure functions of the tensors of one layer.

    Attributes:
      slot_names: one name for each tensor of state that a weight has.
    """

    slot_names: tuple[str, ...]

    def begin(
        self,
        w: tf.Tensor,
        g: tf.Tensor,
        slots: tuple[tf.Tensor, ...],
        decay: float,
        step: Any,
    ) -> Begun:
        """The part of an update that comes before the norms.

        Args:
          w: the weights, any shape.
          g: the gradient: averaged over the batch, unscaled, reduced over the workers.
          slots: the state, each of the shape of w.
          decay: this tensor's weight decay, 0 where it is excluded.
          step: which step this is, from 1.
        """

    def finish(
        self,
        w: tf.Tensor,
        g: tf.Tensor,
        begun: Begun,
        sums: tf.Tensor | None,
        learning_rate: Any,
        decay: float,
    ) -> Change:
        """The part that comes after: (the new weights, the new slots...), or a step of momentum.

        Args:
          sums: float64 [2], the sums of squares of w and of x + c w; None where the tensor is
            excluded from layer-wise rates, whose ratio is 1.
        """


def trust_ratio(
    weight_norm: tf.Tensor,
    direction_norm: tf.Tensor,
    coefficient: float = 1.0,
    stabilizer: Any = 0.0,
) -> tf.Tensor:
    """coefficient ‖w‖ / (‖d‖ + stabilizer), and 1 where ‖w‖ or ‖d‖ is 0.

    A norm that is NaN gives NaN, so that the whole layer shows at once that something is wrong
    (NVIDIA apex does so; TensorFlow's implementations take 1 and corrupt only some entries).

    Args:
      weight_norm: ‖w‖, a scalar.
      direction_norm: ‖d‖, a scalar.
      coefficient: η, a factor without unit.
      stabilizer: what is added to the denominator, in units of ‖d‖.

    Returns:
      A scalar of the dtype of the norms.

    Example:
      >>> float(trust_ratio(tf.constant(5.0), tf.constant(2.0), coefficient=0.1))
      0.25
      >>> float(trust_ratio(tf.constant(0.0), tf.constant(2.0), coefficient=0.1))
      1.0

    Source: You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017,
    equation 6.
    """
    either_is_zero = tf.logical_or(weight_norm == 0, direction_norm == 0)
    # The unused branch must not divide by zero where ‖d‖ = 0.
    denominator = tf.where(either_is_zero, tf.ones_like(direction_norm), direction_norm + stabilizer)
    return tf.where(
        either_is_zero, tf.ones_like(weight_norm), coefficient * weight_norm / denominator
    )
