"""What LARS and LAMB share, whichever rule, whichever Keras."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lars_pto import momentum_step
from lars_pto.momentum_step import MomentumStep
from lars_pto.norms import Measure
from lars_pto.trust_ratio import Change, Rule


class Treatment(NamedTuple):
    """How one variable is treated: whether it has weight decay, and whether it has a rate of its own."""

    decays: bool
    adapts: bool

    def decaying_if(self, wanted: bool) -> "Treatment":
        """This one, without weight decay where that is not `wanted`."""
        return self._replace(decays=self.decays and wanted)


class Layer(NamedTuple):
    """One variable in one step: values of this replica."""

    weights: tf.Tensor
    gradient: tf.Tensor | tf.IndexedSlices
    slots: tuple[tf.Tensor, ...]
    decay: float
    adapts: bool


_BIAS = r"(^|/)bias(:\d+)?$"  # as both Kerases name them


class Exclusions(NamedTuple):
    """Which variables have no weight decay and no layer-wise rate.

    Attributes:
      vectors: whether those of rank 0 and 1, and biases of any (of attention heads, GRUs), have neither.
      weight_decay: regular expressions; a variable whose path matches one does not decay.
      adaptation: the same for the layer-wise rate; None takes those of `weight_decay`.
    """

    vectors: bool = True
    weight_decay: Sequence[str] = ()
    adaptation: Sequence[str] | None = None

    def treatment(self, path: str, rank: int) -> Treatment:
        """What these exclusions mean for one variable.

        Example:
          >>> Exclusions(weight_decay=["embedding"]).treatment("tokens/embedding", 2)
          Treatment(decays=False, adapts=False)
          >>> Exclusions(weight_decay=["embedding"]).treatment("dense/kernel", 2)
          Treatment(decays=True, adapts=True)
        """
        vector = self.vectors and (rank <= 1 or _matches([_BIAS], path))
        adaptation = self.weight_decay if self.adaptation is None else self.adaptation
        decays = not (vector or _matches(self.weight_decay, path))
        return Treatment(decays, not (vector or _matches(adaptation, path)))


def checked(argument: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """`patterns`, given as the argument of this name.

    Raises:
      ValueError: they are no list of regular expressions.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise ValueError(f"{argument}={patterns!r} must be a list of patterns: [{patterns!r}].")
    patterns = tuple(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"{argument}={list(patterns)!r}: {pattern!r} is no regular expression: {error}. Escape signs "
                "that are to be found as they are: re.escape(path)."
            ) from error
    return patterns


def _matches(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def update_layers(
    rule: Rule, layers: Sequence[Layer], learning_rate: Any, step: Any, measure: Measure
) -> list[Change]:
    """One step of `rule` for all layers, with one call of `measure` for all norms.

    Computes in float32 (float64 for float64 weights). A sparse gradient is the dense one that it
    stands for: duplicate rows are summed first, and momentum and decay move all rows.

    Args:
      rule: the update rule.
      layers: the variables with their gradients, summed over the workers.
      learning_rate: a scalar.
      step: which step this is, from 1.
      measure: as `norms.sums_of_squares`.

    Returns:
      For each layer (new weights, new slots...), in the dtypes of the old ones, or a step that is left to
      be taken in place.
    """
    inputs, begun = [], []
    for layer in layers:
        dtype = tf.float64 if layer.weights.dtype == tf.float64 else tf.float32
        w, *slots = (tf.cast(x, dtype) for x in (layer.weights, *layer.slots))
        # Its shape may be known to the run alone, as behind a tf.function.
        g = tf.cast(tf.ensure_shape(tf.convert_to_tensor(layer.gradient), layer.weights.shape), dtype)
        inputs.append((w, g))
        begun.append(rule.begin(w, g, tuple(slots), layer.decay, step))
    adapted = [i for i, layer in enumerate(layers) if layer.adapts]
    sums = measure(
        [inputs[i][0] for i in adapted],
        [begun[i].measured for i in adapted],
        [begun[i].measured_decay for i in adapted],
    )
    row_of = {i: row for row, i in enumerate(adapted)}
    results = []
    for i, (layer, (w, g)) in enumerate(zip(layers, inputs, strict=True)):
        rate = tf.cast(tf.convert_to_tensor(learning_rate), w.dtype)
        own = sums[row_of[i]] if i in row_of else None
        change = rule.finish(w, g, begun[i], own, rate, layer.decay)
        if isinstance(change, MomentumStep):
            if momentum_step.can_be_taken(layer.weights.dtype):
                results.append(change)
                continue
            change = change.values(w, *begun[i].slots)
        old = (layer.weights, *layer.slots)
        results.append(tuple(tf.cast(x, o.dtype) for x, o in zip(change, old, strict=True)))
    return results


class LayerWise:
    """Mixed into an optimizer of either Keras, before it: a rule's changes take the place of gradients."""

    def _changes(self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]]) -> list[tuple[Change, tf.Variable]]:
        """Pairs as Keras has them, with a variable's change in place of its gradient."""
        layers = []
        for gradient, variable in pairs:
            slots = tuple(tf.convert_to_tensor(slot) for slot in self._slots_of(variable))
            treatment = self._treatment_of(variable)
            decay = (self.weight_decay or 0.0) if treatment.decays else 0.0
            layers.append(
                Layer(tf.convert_to_tensor(variable), gradient, slots, decay, treatment.adapts)
            )
        changes = update_layers(self._rule, layers, self.learning_rate, self.iterations + 1, self._norms)
        return [(change, variable) for change, (_, variable) in zip(changes, pairs, strict=True)]

    @property
    def parallel_decision(self):
        """Whether the norms are divided over the workers, and why; None before the first step."""
        return self._norms.decision

    def _apply_weight_decay(self, variables):
        """Nothing: the decay is part of the rule, and under its ratio."""


def make(change: Change, weights: tf.Variable, slots: Sequence[tf.Variable]) -> None:
    """Changes a variable and its slots."""
    if isinstance(change, MomentumStep):
        change.take(weights, *slots)
        return
    for variable, value in zip([weights, *slots], change, strict=True):
        variable.assign(value)
