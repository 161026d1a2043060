"""Guarded: measures now and then what selecting before summing loses, and does something about it."""

import dataclasses
import numbers

import tensorflow as tf

from custom_ops import mstopk, sum_entries
from tf_sparse_strategy import cost_model, residual, wire
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.sparse import SparseCommunication
from tf_sparse_strategy.communication.switching import STEP, Switching, own_name
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.gradient_kinds import all_finite
from tf_sparse_strategy.residual import AGE, RESIDUAL, State
from tf_sparse_strategy.topology import Topology

ACTIONS = ("warn", "density", "dense")
# Names in the state: the last measured loss, checks beyond the limit, and how often density was raised.
EPS, BEYOND, LEVEL = "eps", "beyond", "level"
_RAISE, _LEVELS = 4, 3


@dataclasses.dataclass(frozen=True)
class Guarded(Switching):
    """A sparse scheme whose loss by early selection is checked every `every` steps.

    Convergence proofs of sparse schemes assume that it does not matter much that workers select before they
    add up. With a_i = gradient + residual of holder i, u what the scheme returns and g the exact sum of
    the gradients, the check takes

        eps = ||top_K(a_1 + ... + a_H) - top_K(u)|| / ||g||

    of each bucket; the proof needs it bounded. Where it is above `limit`, rank 0 prints so, and

        action="warn"      that is all
        action="density"   from the next step on four times as many elements are sent, at most twice so
        action="dense"     this step returns the exact sum of all a_i, and the residuals are emptied

    A check costs an all-reduce of 2 N elements, 16 N (P-1)/P bytes in 2 (P-1) messages per worker (half of it
    without error feedback), which pass between nodes as those of `Dense` do, one of a single number, and two
    selections. In a step that is not finite nothing changes, whatever was printed.
    `CommunicationMonitor` logs eps, and how many checks were beyond the limit.

    When not to use it: where steps are so few that a check in each 100th says nothing; and the bound that is
    right for a model is not known beforehand: look at what is logged in the first epochs.

    Args:
      scheme: any sparse scheme but `DGC`; of `Piecewise` guard the phases, and `Auto` has no guard.
      limit: of eps, a ratio above 0.
      every: steps from one check to the next, at least 1; default 100.
      action: what to do beyond the limit: "warn" (default), "density" or "dense".

    Raises:
      ValueError: an argument is not as described.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> from tf_sparse_strategy.communication import Guarded, ShardedTopK
      >>> strategy = tss.SparseStrategy(communication=Guarded(ShardedTopK(0.01), limit=2.0, action="dense"))

    Source: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022,
    Assumption 1.
    """

    scheme: SparseCommunication
    limit: float
    every: int = 100
    action: str = "warn"

    def __post_init__(self):
        if not isinstance(self.scheme, SparseCommunication):
            raise ValueError(
                f"Guarded(scheme={self.scheme!r}) must be a sparse scheme, e.g. HiTopK(0.01); of a Piecewise "
                "guard the phases."
            )
        if self.scheme.momentum is not None:
            raise ValueError(
                f"Guarded(scheme={self.scheme!r}): what the check compares has no momentum in it. Guard "
                "HiTopK, and leave the momentum to the optimizer."
            )
        if not (self.limit > 0 and isinstance(self.every, numbers.Integral) and self.every >= 1):
            raise ValueError(
                f"Guarded(limit={self.limit!r}, every={self.every!r}): limit must be above 0, and every at "
                "least 1 step, in whole ones."
            )
        if self.action not in ACTIONS:
            raise ValueError(f"Guarded(action={self.action!r}) is not one of {ACTIONS}.")

    def schemes(self, topology: Topology) -> tuple[Communication, ...]:
        if self.action != "density":
            return (self.scheme,)
        densities = dict.fromkeys(
            min(1.0, self.scheme.density * _RAISE**level) for level in range(_LEVELS)
        )
        return tuple(dataclasses.replace(self.scheme, density=density) for density in densities)

    @property
    def keeps_residual(self) -> bool:
        return self.scheme.keeps_residual

    @property
    def error_feedback(self) -> bool:
        """That of the scheme."""
        return self.scheme.error_feedback

    def check_optimizer(self, optimizer) -> None:
        self.scheme.check_optimizer(optimizer)

    def _counters(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        return {
            STEP: plain_variable(0, dtype=tf.int64),
            LEVEL: plain_variable(0, dtype=tf.int64),
            BEYOND: plain_variable(0, dtype=tf.int64),
            EPS: plain_variable(0.0),
        }

    def _now(self, state: State) -> tf.Tensor:
        return state[LEVEL].read_value()

    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        summed = super().reduce(bucket, state, collectives)
        if not self.scheme.drops(bucket.shape[0], bucket.dtype.name, collectives.topology):
            return summed
        due = (state[STEP] + 1) % self.every == 0
        kept = state.staged[RESIDUAL] if RESIDUAL in state else tf.zeros([0])
        summed, kept, eps, is_exact = tf.cond(
            due,
            lambda: self._check(bucket, summed, kept, state, collectives),
            lambda: (summed, kept, state[EPS].read_value(), tf.constant(False)),
        )
        beyond = tf.cast(tf.logical_and(due, eps > self.limit), tf.int64)
        top = len(self.schemes(collectives.topology)) - 1
        new = {
            STEP: state[STEP] + 1,
            LEVEL: tf.minimum(state[LEVEL] + beyond, top),
            BEYOND: state[BEYOND] + beyond,
            EPS: eps,
        }
        if RESIDUAL in state:
            new[RESIDUAL] = kept
        for name in state:
            if own_name(name) == AGE:  # thresholds are of a residual that is no more
                new[name] = tf.where(is_exact, tf.zeros([], tf.int64), state.staged[name])
        state.stage(state.finite, **new)
        return summed

    def _check(self, bucket, summed, kept, state, collectives):
        """(the sum to return, this worker's residual, eps, whether all of it is summed)."""
        share, n = self.share(collectives.topology), bucket.shape[0]
        parts = [residual.flush(bucket, state[RESIDUAL], share)] if RESIDUAL in state else []
        parts.append(tf.cast(bucket, tf.float32))
        sums = collectives.all_reduce(tf.stack(parts), purpose="guard")
        whole, gradient = sums[0], sums[-1]
        k = self.scheme.count(n)
        difference = _top(whole, k) - _top(tf.cast(summed, tf.float32), k)
        eps = tf.math.divide_no_nan(tf.norm(difference), tf.norm(gradient))
        # Workers act alike, also where they add up in another order, with another number of threads.
        eps = collectives.all_reduce(eps, op="max", purpose="guard")
        # Not where finite parts add up to Inf, of which no residual would recover.
        finite = all_finite(whole)
        if collectives.topology.rank == 0:
            tf.cond(
                eps > self.limit,
                lambda: self._tell(eps, n, state, finite, collectives.topology),
                lambda: None,
            )
        if self.action != "dense":
            return summed, kept, eps, tf.constant(False)
        beyond = tf.logical_and(eps > self.limit, finite)
        if RESIDUAL not in state:
            return tf.where(beyond, wire.narrow(whole, bucket.dtype), summed), kept, eps, beyond
        values, left = residual.hand_out(whole, bucket.dtype, share)
        return tf.where(beyond, values, summed), tf.where(beyond, left, kept), eps, beyond

    def _tell(self, eps, n: int, state, finite, topology: Topology) -> None:
        done = "nothing is done about it"
        if self.action == "dense":
            done = tf.where(finite, "this step is summed exactly", f"{done}, for the exact sum is not finite")
        elif self.action == "density":
            densities = [scheme.density for scheme in self.schemes(topology)]
            raised = tf.minimum(state[LEVEL] + 1, len(densities) - 1)
            goes = tf.where(raised > state[LEVEL], "is raised to", "stays")
            done = tf.strings.join(
                ["their density", goes, tf.strings.format("{}", tf.gather(densities, raised))], separator=" "
            )
        found = f"WARNING: Guarded: eps is {{}} and its limit {self.limit} for {n} elements; "
        tf.print(tf.strings.join([tf.strings.format(found, eps), done]))

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """That of the scheme, and of a check in each `every`-th step."""
        cost = self.scheme.cost(n, topology, model)
        if not self.scheme.drops(n, "float32", topology):
            return cost
        selecting = cost_model.selection(n, model)
        sent = 4 * n * (1 + self.keeps_residual)
        sums = cost_model.all_reduce(topology, sent, model) + cost_model.all_reduce(topology, 4, model)
        return cost + (sums + selecting + selecting).every(self.every)


def _top(x, k: int):
    """`x` [n] with all but its k largest magnitudes zero."""
    values, indices = mstopk(x, k)
    return sum_entries(values[tf.newaxis, tf.newaxis], indices[tf.newaxis, tf.newaxis], x.shape[0])[0]
