"""What sparse communication does: parts of gradients applied, what waits in residuals, schemes in use.

Counters, as in metrics.py, whose differences belong to a stretch of training; and numbers of its last step.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import guarded, oktopk, switching
from tf_sparse_strategy.communication.dense import scheme_of
from tf_sparse_strategy.communication.switching import own_name
from tf_sparse_strategy.gradient_kinds import all_finite, sum_of_squares
from tf_sparse_strategy.hooking import built_layers
from tf_sparse_strategy.residual import RESIDUAL, State


class GradientProbe:
    """Notes on the device, in every n-th step, what one worker's sparse sums were like.

    Cost of such a step: one read of each gradient, its sum and its residual.

    Args:
      every: n.
    """

    def __init__(self, every: int):
        self._every = every
        self._steps = plain_variable(0, dtype=tf.int64)  # in which something was reduced
        self._begun = plain_variable(0, dtype=tf.int64)  # 1 until something is
        self._sums = plain_variable([0.0] * 4, dtype=tf.float64)

    def begin_step(self) -> None:
        """Lets the next `due` count one step, and those after it none."""
        self._begun.assign(1)

    def due(self) -> tf.Tensor:
        """Whether this step is to be noted. One with several optimizers asks several times."""
        steps = self._steps.assign_add(self._begun.read_value())
        self._begun.assign(0)
        return steps % self._every == 0

    def note(self, due: tf.Tensor, gradient: tf.Tensor, summed: tf.Tensor, state: State) -> None:
        """Notes one bucket, unless it is not finite.

        Args:
          due: of this step.
          gradient: [N], this worker's.
          summed: [N], over all workers.
          state: of the bucket, with what is staged.
        """
        kept = state.staged.get(RESIDUAL, state.get(RESIDUAL))

        def add():
            found = [
                tf.size(summed, tf.float64),
                tf.math.count_nonzero(summed, dtype=tf.float64),
                sum_of_squares(gradient),
                tf.zeros([], tf.float64) if kept is None else sum_of_squares(kept),
            ]
            found = tf.stack(found)
            # What is staged is kept only where the sum is finite, too.
            finite = tf.logical_and(all_finite(found), all_finite(summed))
            self._sums.assign_add(tf.where(finite, found, 0.0), read_value=False)

        tf.cond(due, add, lambda: None)

    def read(self) -> list[float]:
        """Sums so far: elements, applied ones, squares of gradients, squares of residuals."""
        return self._sums.numpy().tolist()


@dataclasses.dataclass(frozen=True)
class SchemeCounts:
    """What one worker's sparse communication has done.

    Args:
      noted: of a `GradientProbe`.
      passed: the mean over OkTopK's buckets of the entries that passed the local threshold, divided by K; 0
        without.
      eps: the largest of Guarded's buckets; 0 without.
      beyond: Guarded's checks beyond its limit, of all buckets; 0 without.
      sparse: part of the gradients' elements whose last sum was sparse.
      changes: how often another scheme took over, of all buckets.
    """

    noted: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    passed: float = 0.0
    eps: float = 0.0
    beyond: float = 0.0
    sparse: float = 0.0
    changes: float = 0.0


def read(model, probe: GradientProbe | None) -> SchemeCounts:
    """What this worker knows of the sparse sums of a model's gradients."""
    strategy, used = model.distribute_strategy, _in_use(model)
    topology = strategy.topology
    passed = [found for _, schemes in used for found in _of_schemes(schemes, oktopk.PASSED)]
    total = sum(bucket.num_elements for bucket, _ in used)
    sparse = sum(
        bucket.num_elements
        for bucket, schemes in used
        if schemes[-1][0].drops(bucket.num_elements, bucket.dtype, topology)
    )
    return SchemeCounts(
        tuple(probe.read()) if probe else SchemeCounts.noted,
        float(np.mean(passed)) if passed else 0.0,
        max((eps for _, schemes in used for eps in _of_schemes(schemes, guarded.EPS)), default=0.0),
        _counted(strategy.residual, guarded.BEYOND),
        sparse / total if total else 0.0,
        _counted(strategy.residual, switching.CHANGES),
    )


def schemes_in_use(model) -> dict[str, int]:
    """Elements of a model's gradients by the scheme, in words, that summed them last."""
    elements: dict[str, int] = {}
    for bucket, schemes in _in_use(model):
        name = repr(schemes[-1][0])
        elements[name] = elements.get(name, 0) + bucket.num_elements
    return elements


def _in_use(model) -> list[tuple]:
    """(bucket, its schemes in use) of each bucket of a model's gradients."""
    strategy = model.distribute_strategy
    scheme, topology = strategy.extended.gradients.scheme, strategy.topology
    variables = (v for layer in built_layers(model) for v in layer.trainable_variables)
    buckets = strategy.residual.trained_buckets(variables)
    return [(bucket, scheme_of(bucket, scheme).in_use(state, topology)) for bucket, state in buckets]


def _of_schemes(schemes, name) -> list[float]:
    """The variables `name` of the schemes that summed the last step."""
    return [float(state[name].numpy()) for _, state in schemes if name in state]


def _values(state, name) -> list[float]:
    """The variables `name` of all schemes of the state that have one."""
    return [float(v.numpy()) for key, v in state.items() if own_name(key) == name]


def _counted(memory, name) -> float:
    """The sum of the variables `name`, of all lists of gradients there have been."""
    return sum((n for _, state in memory.buckets for n in _values(state, name)), memory.forgotten[name])


def gather(mine: SchemeCounts, collectives: Collectives) -> list[SchemeCounts]:
    """Every worker's, in rank order. Collective: 72 bytes per worker."""
    noted, *others = dataclasses.astuple(mine)
    row = tf.constant([[*noted, *others]], tf.float64)
    everyone = collectives.all_gather(row, purpose="metrics").numpy().tolist()
    return [SchemeCounts(tuple(values[:4]), *values[4:]) for values in everyone]


def rates(before: Sequence[SchemeCounts], after: Sequence[SchemeCounts]) -> dict[str, float]:
    """What is shown of the sparse communication of one stretch of training.

    Returns:
      `sparse_part` (elements whose last sum was sparse, of all), `applied_density` (entries of the sums
      that are not zero, of all), `residual_ratio` (the norm of all workers' residuals by that of their
      gradients), `threshold_hits` (entries that passed OkTopK's local thresholds, by K), `eps` (Guarded's,
      the largest of all buckets), `beyond_limit` (Guarded's checks whose eps was, of all buckets) and
      `scheme_changes` (how often another scheme took over, of all buckets).
    """
    noted = np.array([worker.noted for worker in after]) - [worker.noted for worker in before]
    elements, applied = noted[0, :2]
    gradient, kept = noted[:, 2:].sum(axis=0)
    return {
        "sparse_part": after[0].sparse,
        "applied_density": float(applied / elements) if elements else 0.0,
        "residual_ratio": float(np.sqrt(kept / gradient)) if gradient else 0.0,
        "threshold_hits": float(np.mean([worker.passed for worker in after])),
        "eps": after[0].eps,
        "beyond_limit": after[0].beyond - before[0].beyond,
        "scheme_changes": after[0].changes - before[0].changes,
    }
