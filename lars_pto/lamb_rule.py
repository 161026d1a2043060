"""LAMB as a pure rule."""

import dataclasses

import tensorflow as tf

from lars_pto.trust_ratio import Begun, Change, trust_ratio


@dataclasses.dataclass(frozen=True)
class LambRule:
    """Adam's direction at a layer-wise rate.

    With weights w, gradient g, weight decay λ, learning rate γ and step t:

        m = β₁m + (1-β₁)g        v = β₂v + (1-β₂)g²
        u = (m / (1-β₁ᵗ)) / (√(v / (1-β₂ᵗ)) + ε) + λw
        w -= γ (‖w‖ / ‖u‖) u, where the ratio is 1 if a norm is zero

    Attributes:
      beta_1: β₁.
      beta_2: β₂.
      epsilon: ε, in units of the gradient.
      bias_correction: whether m and v are divided by 1-βᵗ.

    Raises:
      ValueError: an attribute is outside its range.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
    ICLR 2020, algorithm 2 with φ(z) = z.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = True

    slot_names = ("momentum", "variance")

    def __post_init__(self):
        for name in ("beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"LAMB got {name}={getattr(self, name)!r}; it must be in [0, 1)."
                )
        if not self.epsilon >= 0:
            raise ValueError(f"LAMB got epsilon={self.epsilon!r}; it must be a number >= 0.")

    def begin(self, w, g, slots, decay, step) -> Begun:
        """See `trust_ratio.Rule`."""
        m = self.beta_1 * slots[0] + (1 - self.beta_1) * g
        v = self.beta_2 * slots[1] + (1 - self.beta_2) * tf.square(g)
        unbiased_m, unbiased_v = m, v
        if self.bias_correction:
            step = tf.cast(step, w.dtype)
            unbiased_m = m / (1 - tf.pow(tf.constant(self.beta_1, w.dtype), step))
            unbiased_v = v / (1 - tf.pow(tf.constant(self.beta_2, w.dtype), step))
        # Without an epsilon an element that has had no gradient, or is padding, would be 0/0.
        divide = tf.divide if self.epsilon > 0 else tf.math.divide_no_nan
        return Begun(divide(unbiased_m, tf.sqrt(unbiased_v) + self.epsilon), decay, (m, v))

    def finish(self, w, g, begun, sums, learning_rate, decay) -> Change:
        """See `trust_ratio.Rule`."""
        ratio = tf.ones([], w.dtype)
        if sums is not None:
            weight_norm, direction_norm = tf.unstack(tf.sqrt(sums))
            ratio = tf.cast(trust_ratio(weight_norm, direction_norm), w.dtype)
        return w - learning_rate * ratio * (begun.measured + decay * w), *begun.slots
