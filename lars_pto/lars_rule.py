"""LARS: five published conventions as one pure rule."""

import dataclasses
from typing import Any

import tensorflow as tf

from lars_pto.momentum_step import MomentumStep
from lars_pto.trust_ratio import Begun, Change, trust_ratio

VARIANTS = ("classic", "joint_norm", "after_momentum", "larc", "larc_clip")


@dataclasses.dataclass(frozen=True)
class LarsRule:
    """Layer-wise adaptive rate scaling, in the convention that `variant` names.

    With weights w, gradient g, weight decay λ, learning rate γ, momentum μ, velocity v:

    | variant        | direction d  | ratio r                     | step                            |
    |----------------|--------------|-----------------------------|---------------------------------|
    | classic        | g + λw       | η‖w‖ / (‖g‖ + λ‖w‖ + ε)     | v = μv + γ r d; w -= v          |
    | joint_norm     | g + λw       | η‖w‖ / (‖g + λw‖ + ε)       | v = μv + γ r d; w -= v          |
    | after_momentum | v = μv+g+λw  | η‖w‖ / (‖v‖ + ε)            | w -= γ r v                      |
    | larc           | g + λw       | as classic                  | v = μv + r d; w -= γ v          |
    | larc_clip      | g + λw       | min(classic / γ, 1)         | v = μv + r d; w -= γ v          |

    They part in the second step, or when γ changes: "classic" keeps the old γ in the velocity,
    "larc" does not. With `nesterov` the step is μv + (what v grew by), in "after_momentum" also
    under the norm. r = 1 where a norm is zero; the two "larc" then skip the decay too, as apex does.
    "joint_norm" explodes when g is close to -λw: prefer "classic", or set `ratio_bounds`.

    Attributes:
      momentum: μ.
      trust_coefficient: η.
      epsilon: ε, in units of the norm of the gradient.
      nesterov: whether the step looks one step ahead.
      variant: one of `VARIANTS`.
      ratio_bounds: (low, high) between which the ratio is clipped where no norm is zero.

    Raises:
      ValueError: an attribute is outside its range.

    Source: "classic": You et al. 2017, MLPerf, and Shi et al., MLSys 2021, equation 11 (whose ε is
    our λ); "joint_norm" and "after_momentum": tf-models-official with classic_momentum True and
    False, the former optax too; "larc", "larc_clip": NVIDIA apex's LARC.
    """

    momentum: float = 0.9
    trust_coefficient: float = 0.001
    epsilon: float = 0.0
    nesterov: bool = False
    variant: str = "classic"
    ratio_bounds: tuple[float, float] | None = None

    slot_names = ("velocity",)

    def __post_init__(self):
        if self.variant not in VARIANTS:
            raise ValueError(
                f"LARS got variant={self.variant!r}; allowed are {', '.join(VARIANTS)}."
            )
        for name in ("momentum", "trust_coefficient", "epsilon"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"LARS got {name}={value!r}; it must be a number >= 0.")
        if self.momentum >= 1:
            raise ValueError(f"LARS got momentum={self.momentum!r}; it must be below 1.")
        bounds = self.ratio_bounds
        is_pair = bounds is None or (isinstance(bounds, tuple) and len(bounds) == 2)
        if not is_pair or (bounds and not 0 <= bounds[0] <= bounds[1]):
            raise ValueError(
                f"LARS got ratio_bounds={self.ratio_bounds!r}; pass (low, high) with "
                "0 <= low <= high, or None."
            )

    def begin(self, w, g, slots, decay, step) -> Begun:
        """See `trust_ratio.Rule`."""
        if self.variant == "joint_norm":
            return Begun(g, decay, slots)
        if self.variant != "after_momentum":
            return Begun(g, 0.0, slots)
        direction = g + decay * w
        velocity = self.momentum * slots[0] + direction
        ahead = self.momentum * velocity + direction if self.nesterov else velocity
        return Begun(ahead, 0.0, (velocity,))

    def finish(self, w, g, begun, sums, learning_rate, decay) -> Change:
        """See `trust_ratio.Rule`."""
        ratio = self._ratio(g.dtype, sums, learning_rate, decay)
        if self.variant == "after_momentum":
            return w - learning_rate * ratio * begun.measured, *begun.slots
        decay = tf.constant(decay, g.dtype)
        rate, scale = learning_rate * ratio, None
        if self.variant.startswith("larc"):
            rate, scale = ratio, tf.convert_to_tensor(learning_rate, g.dtype)
            if sums is not None:
                decay = tf.where(sums[1] == 0, tf.zeros([], g.dtype), decay)
        return MomentumStep(g, rate, scale, decay, self.momentum, self.nesterov)

    def _ratio(self, dtype, sums: tf.Tensor | None, learning_rate: Any, decay: float) -> tf.Tensor:
        if sums is None:
            return tf.ones([], dtype)
        weight_norm, direction_norm = tf.unstack(tf.sqrt(sums))
        stabilizer = self.epsilon
        if self.variant not in ("joint_norm", "after_momentum"):
            stabilizer += decay * weight_norm
        ratio = trust_ratio(weight_norm, direction_norm, self.trust_coefficient, stabilizer)
        bounded = ratio
        if self.variant == "larc_clip":
            if tf.is_tensor(learning_rate):
                learning_rate = tf.cast(learning_rate, ratio.dtype)
            bounded = tf.minimum(bounded / learning_rate, 1.0)
        if self.ratio_bounds is not None:
            bounded = tf.clip_by_value(bounded, *self.ratio_bounds)
        return tf.cast(tf.where(tf.reduce_any(sums == 0), ratio, bounded), dtype)
