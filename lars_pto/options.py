"""The constructors of LARS and LAMB, the same for Keras 3 and tf_keras."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from lars_pto.lamb_rule import LambRule
from lars_pto.lars_rule import LarsRule
from lars_pto.layerwise import Exclusions, checked
from lars_pto.norms import Norms


class LarsOptions:
    """LARS: SGD with momentum in which each layer moves in proportion to its own norm.

    With weights w, gradient g, learning rate γ: r = η‖w‖ / (‖g‖ + λ‖w‖ + ε) per layer,
    v = μv + γ r (g + λw), w -= v; four other published conventions by `variant`, all of them in
    `lars_rule.LarsRule`. Cost per step: one read of all weights and gradients for the norms beside
    the update itself, which on CPUs is one pass in place (but for "after_momentum"). A sparse gradient
    (`tf.IndexedSlices`) counts as the dense one it stands for.

    Not for small batches: SGD with momentum is simpler and as good there. Not with `jit_compile=True`
    on CPUs: the fused operations have no XLA kernel (where a GPU is hidden Keras compiles by itself, and
    others are used).

    Args:
      learning_rate: γ, a float, a schedule or, in Keras 3, a callable. In units of relative change per step:
        with η = 0.001, batch sizes of 4096 to 65536 take peaks of 10 to 35.
      momentum: μ, 0 <= μ < 1; default 0.9.
      weight_decay: λ >= 0, part of the gradient and of the ratio (not Keras's decoupled decay); default 1e-4.
        Leave L2 regularizers out of the model, or decay counts twice. None means 0.
      trust_coefficient: η >= 0; default 0.001.
      epsilon: ε >= 0, in units of the norm of the gradient; default 0.
      nesterov: whether the step looks one step ahead; default False.
      variant: "classic" (default), "joint_norm", "after_momentum", "larc" or "larc_clip".
      ratio_bounds: (low, high) that r is clipped to, 0 <= low <= high, or None (default).
      exclude_vectors: whether variables of rank 0 and 1 (normalization), and what is named `bias`, have
        neither decay nor a rate of their own: they move by γ alone. Default True.
      weight_decay_exclusions: regular expressions; a variable whose path matches one has no decay. Default
        none.
      adaptation_exclusions: the same for r; None (default) takes `weight_decay_exclusions`.
      parallel: whether the norms are divided over the workers: "on", "off", or "auto" (default), which
        measures both in the first step and logs what it chose; see `norms.Norms`. The whole update, with the
        state, is divided by the strategy: `tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate())`,
        where this affects only variables that are not divided.
      **keras_options: Keras's own, e.g. `clipnorm`, `use_ema`, `gradient_accumulation_steps`, `name`.

    Raises:
      ValueError: an argument is outside its range.
      TypeError: (tf_keras) `learning_rate` is a function.
      KeyError: (tf_keras, in a step) a variable is none of those that the optimizer was built on.

    Example:
      >>> import keras, lars_pto
      >>> schedule = keras.optimizers.schedules.PolynomialDecay(10.0, 1000, 1e-4, power=2)
      >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
      >>> model.compile(lars_pto.LARS(schedule, weight_decay=5e-5), loss="mse")

    Source: You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017; Shi et
    al., MLSys 2021, equation 11.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float | None = 1e-4,
        trust_coefficient: float = 0.001,
        epsilon: float = 0.0,
        nesterov: bool = False,
        variant: str = "classic",
        ratio_bounds: tuple[float, float] | None = None,
        exclude_vectors: bool = True,
        weight_decay_exclusions: Sequence[str] = (),
        adaptation_exclusions: Sequence[str] | None = None,
        parallel: str = "auto",
        **keras_options,
    ):
        _check_decay("LARS", weight_decay)
        rule = LarsRule(
            momentum,
            trust_coefficient,
            epsilon,
            nesterov,
            variant,
            tuple(ratio_bounds) if isinstance(ratio_bounds, Iterable) else ratio_bounds,
        )
        exclusions = _exclusions(exclude_vectors, weight_decay_exclusions, adaptation_exclusions)
        super().__init__(rule, exclusions, parallel, learning_rate, weight_decay, keras_options)


class LambOptions:
    """LAMB: Adam in which each layer moves in proportion to the norm of its weights.

    With Adam's bias-corrected moments m, v: u = m / (√v + ε) + λw, w -= γ (‖w‖ / ‖u‖) u per layer.
    Keras 3's own `Lamb` applies the weight decay outside the ratio; this one follows the paper and
    tf-models-official. NVIDIA's LAMB is this with `global_clipnorm=1.0`. Not with `jit_compile=True` on CPUs,
    as `LARS`.

    Args:
      learning_rate: γ, a float, a schedule or, in Keras 3, a callable; relative change per step; default
        0.001.
      beta_1: decay of the first moment, 0 <= beta_1 < 1; default 0.9.
      beta_2: decay of the second moment, 0 <= beta_2 < 1; default 0.999.
      epsilon: ε >= 0, in units of the gradient; default 1e-6.
      weight_decay: λ >= 0, under the ratio; default 0.01. None means 0.
      bias_correction: whether the moments are divided by 1 - βᵗ; default True.
      exclude_vectors: as in `LARS`.
      weight_decay_exclusions: as in `LARS`.
      adaptation_exclusions: as in `LARS`.
      parallel: as in `LARS`.
      **keras_options: Keras's own, e.g. `global_clipnorm`, `use_ema`, `name`.

    Raises:
      ValueError, TypeError, KeyError: as in `LARS`.

    Example:
      >>> import keras, lars_pto
      >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
      >>> model.compile(lars_pto.LAMB(2e-3, weight_decay_exclusions=["layer_norm"]), loss="mse")

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
    ICLR 2020, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.01,
        bias_correction: bool = True,
        exclude_vectors: bool = True,
        weight_decay_exclusions: Sequence[str] = (),
        adaptation_exclusions: Sequence[str] | None = None,
        parallel: str = "auto",
        **keras_options,
    ):
        _check_decay("LAMB", weight_decay)
        rule = LambRule(beta_1, beta_2, epsilon, bias_correction)
        exclusions = _exclusions(exclude_vectors, weight_decay_exclusions, adaptation_exclusions)
        super().__init__(rule, exclusions, parallel, learning_rate, weight_decay, keras_options)


def _check_decay(name, decay):
    if decay is not None and not decay >= 0:
        raise ValueError(f"{name} got weight_decay={decay!r}; it must be a number >= 0.")


def _exclusions(vectors, weight_decay, adaptation):
    return Exclusions(
        vectors,
        checked("weight_decay_exclusions", () if weight_decay is None else weight_decay),
        None if adaptation is None else checked("adaptation_exclusions", adaptation),
    )


def config_of(rule: LarsRule | LambRule, exclusions: Exclusions, norms: Norms) -> dict[str, Any]:
    """The arguments of the constructors above that give these."""
    return {
        **dataclasses.asdict(rule),
        "exclude_vectors": exclusions.vectors,
        "weight_decay_exclusions": list(exclusions.weight_decay),
        "adaptation_exclusions": (
            None if exclusions.adaptation is None else list(exclusions.adaptation)
        ),
        "parallel": norms.mode,
    }
