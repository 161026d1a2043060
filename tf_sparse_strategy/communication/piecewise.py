"""Piecewise: one scheme after the other as training goes on."""

import dataclasses
import functools

import tensorflow as tf

from tf_sparse_strategy import residual
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.sparse import all_finite
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import RESIDUAL, Share, State
from tf_sparse_strategy.topology import Topology

_UNITS = ("epoch", "step")
PHASE = "phase"  # the state's name of the phase that the last step was in


@dataclasses.dataclass(frozen=True)
class Piecewise(Communication):
    """Changes the scheme at given epochs or steps.

    Sparse phases share one residual, so that nothing is lost from one density to the next. When an exact
    scheme follows, its first step also sums what the residuals hold (`flush`), or they wait for the next
    sparse phase. Costs what the current phase costs.

    When not to use it: to ramp up the learning rate, or anything but communication. In a loop of your
    own only `unit="step"` counts; epochs are those of Keras's `fit`.

    Args:
      phases: (start, scheme) pairs, starts ascending from 0. All sparse schemes must keep their
        residuals alike: per node (HiTopK, ShardedTopK, GTopK, OkTopK) or per worker (TopKAllGather).
      unit: of the starts: "epoch", or "step", a step being one reduction of the gradients.
      flush: whether an exact phase begins by summing the residuals.

    Raises:
      ValueError: `phases` or `unit` is not as described.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> from tf_sparse_strategy.communication import HiTopK, Piecewise, Torus2D
      >>> warm_up = [(0, HiTopK(0.25)), (1, HiTopK(0.0625)), (2, HiTopK(0.01)), (13, Torus2D())]
      >>> strategy = tss.SparseStrategy(communication=Piecewise(warm_up))

    Source: density warm-up as in Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3; an
    exact second half as in Shi et al., MLSys 2021, section 5.6.
    """

    phases: tuple[tuple[int, Communication], ...]
    unit: str = "epoch"
    flush: bool = True

    def __post_init__(self):
        object.__setattr__(self, "phases", tuple((start, scheme) for start, scheme in self.phases))
        starts = [start for start, _ in self.phases]
        if not starts or starts[0] != 0 or any(a >= b for a, b in zip(starts, starts[1:], strict=False)):
            raise ValueError(
                f"Piecewise(phases=...) starts at {starts}; the first phase must start at 0 and each "
                "later than the one before, e.g. [(0, HiTopK(0.01)), (13, Torus2D())]."
            )
        if self.unit not in _UNITS:
            raise ValueError(f"Piecewise(unit={self.unit!r}) is not one of {_UNITS}.")

    def _keeping(self) -> list[Communication]:
        return [scheme for _, scheme in self.phases if scheme.keeps_residual]

    @property
    def keeps_residual(self) -> bool:
        return bool(self._keeping())

    def validate(self, topology: Topology) -> None:
        for _, scheme in self.phases:
            scheme.validate(topology)
        if len({scheme.share(topology) for scheme in self._keeping()}) > 1:
            raise ValueError(
                f"Piecewise(phases=...): the residuals of {self._keeping()} do not fit each other, some are "
                "per node, others per worker. Use HiTopK, ShardedTopK and GTopK together, or TopKAllGather "
                "alone."
            )

        forgetful = [s for _, s in self.phases if getattr(s, "error_feedback", True) is False]
        if self._keeping() and forgetful:
            raise ValueError(
                f"Piecewise(phases=...): {forgetful} without error feedback would drop what other phases "
                "keep. Use error feedback in all sparse phases, or in none."
            )

    def share(self, topology: Topology) -> Share:
        return [*self._keeping(), self.phases[0][1]][0].share(topology)

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        variables = {}
        for number, (_, scheme) in enumerate(self.phases):
            for name, variable in scheme.state(bucket, topology).items():
                variables.setdefault(_name(number, name), variable)
        counters = {name: residual.variable(tf.zeros([], tf.int64)) for name in (self.unit, PHASE)}
        return {**variables, **counters}

    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        starts = tf.constant([start for start, _ in self.phases], tf.int64)
        now = tf.reduce_sum(tf.cast(state[self.unit] >= starts, tf.int64)) - 1
        changed = now != state[PHASE]
        branches = [
            functools.partial(self._phase, number, bucket, state, changed, collectives)
            for number in range(len(self.phases))
        ]
        summed, new, finite = tf.switch_case(tf.cast(now, tf.int32), branches)
        state.stage(finite, **new, **{PHASE: now})
        if self.unit == "step":
            state.stage(finite, step=state["step"] + 1)
        return tf.ensure_shape(summed, bucket.shape)

    def _phase(self, number, bucket, state, changed, collectives):
        """(sum, all variables' new values, whether they are to be written) of one phase's step."""
        _, scheme = self.phases[number]
        own = {key.removeprefix(f"{number}."): key for key in state if key.startswith(f"{number}.")}
        if scheme.keeps_residual and RESIDUAL in state:
            own[RESIDUAL] = RESIDUAL
        inner = State({name: state[key] for name, key in own.items()})
        new = {
            key: variable.read_value()
            for key, variable in state.items()
            if key not in (self.unit, PHASE)
        }
        if scheme.keeps_residual or RESIDUAL not in state:
            summed = scheme.reduce(bucket, inner, collectives)
            new.update({own[name]: value for name, value in inner.staged.items()})
            return summed, new, tf.constant(True) if inner.finite is None else inner.finite
        leaving = tf.logical_and(changed, self.flush)
        share = self.share(collectives.topology)

        def sum_all():
            whole = residual.flush(bucket, state, share)
            return tf.cast(scheme.reduce(whole, State({}), collectives), bucket.dtype)

        summed = tf.cond(
            leaving, sum_all, lambda: scheme.reduce(bucket, State({}), collectives)
        )
        new[RESIDUAL] = tf.cond(
            leaving, lambda: tf.zeros_like(state[RESIDUAL]), lambda: new[RESIDUAL]
        )
        return summed, new, tf.logical_or(tf.logical_not(leaving), all_finite(summed))

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """That of the dearest phase."""
        costs = [scheme.cost(n, topology, model) for _, scheme in self.phases]
        return max(costs, key=lambda cost: cost.seconds)


def _name(number: int, name: str) -> str:
    """Phases share the residual; what else a scheme remembers is its own."""
    return name if name == RESIDUAL else f"{number}.{name}"
