"""Piecewise: one scheme after the other as training goes on."""

import dataclasses
import numbers
from collections.abc import Iterable

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.switching import EPOCH, PHASE, STEP, Switching
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.topology import Topology

_UNITS = (EPOCH, STEP)


@dataclasses.dataclass(frozen=True)
class Piecewise(Switching):
    """Changes the scheme at given epochs or steps.

    Sparse phases share one residual, so that nothing is lost from one density to the next. When an exact
    scheme follows, its first step also sums what the residuals hold (`flush`), or they wait for the next
    sparse phase. Costs what the current phase costs. Rank 0 prints each change, of each bucket.

    When not to use it: to ramp up the learning rate, or anything but communication. In a loop of your
    own only `unit="step"` counts; epochs are those of Keras's `fit`, which counts anew in each call
    unless told its `initial_epoch`.

    Args:
      phases: (start, scheme) pairs, starts whole and ascending from 0. Where some keep residuals per node
        (HiTopK, ShardedTopK, GTopK, OkTopK) and others per worker (TopKAllGather, OkTopK(flat=True)), these
        take as much memory throughout as the latter's.
      unit: of the starts: "epoch" (default), or "step", a step being one reduction of the gradients, of one
        list of variables: lists that are trained again by a `tf.function` outside `fit` count each for
        itself. Steps that one worker makes alone, which sends nothing, do not count, nor do those that are
        not finite; a change that would begin with such a step is told again.
      flush: whether an exact phase begins by summing the residuals; default True.

    Raises:
      ValueError: `phases` or `unit` is not as described; `Auto` is a phase, or a `Piecewise` of exact ones
        beside sparse ones; or, when the strategy is made, a phase cannot run there, or phases differ in
        `error_feedback` or in the momentum that they apply.
      TypeError: `phases` are not pairs, or a phase's scheme is not a `Communication`.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> from tf_sparse_strategy.communication import HiTopK, Piecewise, Torus2D
      >>> warm_up = [(0, HiTopK(0.25)), (1, HiTopK(0.0625)), (2, HiTopK(0.01)), (13, Torus2D())]
      >>> strategy = tss.SparseStrategy(communication=Piecewise(warm_up))

    Source: density warm-up as in Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3; an
    exact second half as in Shi et al., MLSys 2021, section 5.6.
    """

    phases: tuple[tuple[int, Communication], ...]
    unit: str = EPOCH
    flush: bool = True

    def __post_init__(self):
        pairs = tuple(self.phases) if isinstance(self.phases, Iterable) else None
        if pairs is None or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise TypeError(
                f"Piecewise(phases={self.phases!r}) must be a list of pairs (start, scheme), e.g. "
                "[(0, HiTopK(0.01)), (13, Torus2D())]."
            )
        object.__setattr__(self, "phases", tuple((start, scheme) for start, scheme in pairs))
        starts = [start for start, _ in self.phases]
        whole = all(isinstance(start, numbers.Integral) for start in starts)
        if not whole or starts[:1] != [0] or any(a >= b for a, b in zip(starts, starts[1:], strict=False)):
            raise ValueError(
                f"Piecewise(phases=...) starts at {starts}; the first phase must start at 0 and each "
                "later than the one before, in whole numbers, e.g. [(0, HiTopK(0.01)), (13, Torus2D())]."
            )
        for _, scheme in self.phases:
            if not isinstance(scheme, Communication):
                raise TypeError(
                    f"Piecewise(phases=...): {scheme!r} is not a Communication; give an instance, e.g. "
                    "HiTopK(0.01)."
                )
        for _, scheme in self.phases:
            if type(scheme).prepare is not Communication.prepare:
                raise ValueError(
                    f"Piecewise(phases=...): {scheme!r} chooses by itself, for the whole training. Give it "
                    "as `communication` alone."
                )
            if self.keeps_residual and isinstance(scheme, Piecewise) and not scheme.keeps_residual:
                raise ValueError(
                    f"Piecewise(phases=...): {scheme!r} has exact phases alone, beside sparse ones. Put them "
                    "into the outer Piecewise."
                )
        if self.unit not in _UNITS:
            raise ValueError(f"Piecewise(unit={self.unit!r}) is not one of {_UNITS}.")

    def schemes(self, topology: Topology) -> tuple[Communication, ...]:
        return tuple(scheme for _, scheme in self.phases)

    @property
    def momentum(self) -> float | None:
        """That of all phases: `validate` refuses others."""
        return self.phases[0][1].momentum

    @property
    def keeps_residual(self) -> bool:
        return any(scheme.keeps_residual for _, scheme in self.phases)

    def validate(self, topology: Topology) -> None:
        super().validate(topology)
        forgetful = [s for _, s in self.phases if getattr(s, "error_feedback", True) is False]
        if self.keeps_residual and forgetful:
            raise ValueError(
                f"Piecewise(phases=...): {forgetful} without error feedback would drop what other phases "
                "keep. Use error feedback in all sparse phases, or in none."
            )

    def check_optimizer(self, optimizer) -> None:
        for _, scheme in self.phases:
            scheme.check_optimizer(optimizer)

    def _counters(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        return {self.unit: plain_variable(0, dtype=tf.int64)}

    def _now(self, state: State) -> tf.Tensor:
        starts = tf.constant([start for start, _ in self.phases], tf.int64)
        return tf.reduce_sum(tf.cast(state[self.unit] >= starts, tf.int64)) - 1

    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        if collectives.topology.rank == 0:
            self._tell_change(state[PHASE], self._now(state), bucket.shape[0])
        summed = super().reduce(bucket, state, collectives)
        if self.unit == STEP:
            state.stage(state.finite, **{STEP: state[STEP] + 1})
        return summed

    def _tell_change(self, before: tf.Tensor, now: tf.Tensor, n: int) -> None:
        names = tf.constant([repr(scheme) for _, scheme in self.phases])

        def tell():
            told = f"Piecewise: {n} elements are summed by ", " now, before by "
            tf.print(tf.strings.join([told[0], tf.gather(names, now), told[1], tf.gather(names, before)]))

        tf.cond(tf.logical_and(before >= 0, before != now), tell, lambda: None)

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """That of the dearest phase."""
        costs = [scheme.cost(n, topology, model) for _, scheme in self.phases]
        return max(costs, key=lambda cost: cost.seconds)
