"""One of several schemes in each step, over one residual: what Piecewise, Auto and Guarded have in common."""

import abc
import functools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_sparse_strategy import residual
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.gradient_kinds import all_finite
from tf_sparse_strategy.residual import AGE, RESIDUAL, VELOCITY, Share, State
from tf_sparse_strategy.topology import Group, Topology

_SHARED = (RESIDUAL, VELOCITY)
PHASE = "phase"  # the state's name of the scheme, by number, that the last step was summed by
CHANGES = "changes"  # of how often another scheme took over in this run
STEP, EPOCH = "step", "epoch"  # of the steps that were reduced, and of the epoch of Keras's `fit`
NO_PHASE = -1  # another scheme: an exact one's first step sums what is kept
_FIRST = -2  # there was no step


def within(scheme: Communication, topology: Topology) -> Iterator[Communication]:
    """`scheme` and, where it chooses from others, all that are within these."""
    yield scheme
    if isinstance(scheme, Switching):
        for inner in scheme.schemes(topology):
            yield from within(inner, topology)


class Switching(Communication):
    """Sums each step by one of several schemes.

    Sparse schemes share one residual, so that nothing is lost from one to the next. Where some keep it per
    node and others per worker, each worker has room for [N]: while a node's scheme is in use it is zero but
    for the worker's shard, and when one takes over, the node's workers add theirs up. When an exact one
    follows, its first step also sums what the residuals hold (`flush`), or they wait for the next sparse one.
    """

    flush = True

    @abc.abstractmethod
    def schemes(self, topology: Topology) -> Sequence[Communication]:
        """What there is to choose from."""

    @abc.abstractmethod
    def _now(self, state: State) -> tf.Tensor:
        """int64 scalar, the same on all workers: the number of this step's scheme."""

    @abc.abstractmethod
    def _counters(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        """The variables that `_now` reads."""

    def validate(self, topology: Topology) -> None:
        for scheme in self.schemes(topology):
            scheme.validate(topology)
        chosen = [scheme for scheme in within(self, topology) if not isinstance(scheme, Switching)]
        if len({scheme.momentum for scheme in chosen}) > 1:
            raise ValueError(
                f"communication={self!r}: some of its schemes apply momentum and others leave it to the "
                "optimizer. Use DGC of one momentum throughout, or not at all."
            )

    def sets_vectors_apart(self, topology: Topology, n: int) -> bool:
        return any(scheme.sets_vectors_apart(topology, n) for scheme in self.schemes(topology))

    def in_use(self, state: State, topology: Topology) -> list[tuple[Communication, State]]:
        # Below 0 before a run's first step, and where an exact one has left something: the first stands in.
        number = max(0, int(state[PHASE].numpy()))
        scheme = self.schemes(topology)[number]
        return [(self, state), *scheme.in_use(State(_own(number, scheme, state)), topology)]

    def share(self, topology: Topology) -> Share:
        schemes = self.schemes(topology)
        shares = {scheme.share(topology) for scheme in schemes if scheme.keeps_residual}
        if len(shares) > 1:  # what is a node's fits into its workers'
            return Share.per_worker(topology)
        return shares.pop() if shares else schemes[0].share(topology)

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        variables = {}
        for number, scheme in enumerate(self.schemes(topology)):
            for name, variable in scheme.state(bucket, topology).items():
                variables.setdefault(_name(number, name), variable)
        length = self.share(topology).length(bucket.num_elements)
        if RESIDUAL in variables and variables[RESIDUAL].shape[0] != length:
            variables[RESIDUAL] = plain_variable(tf.zeros([length]))
        own = {PHASE: plain_variable(_FIRST, dtype=tf.int64)}
        own[CHANGES] = plain_variable(0, dtype=tf.int64)
        return {**variables, **self._counters(bucket, topology), **own}

    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        now = self._now(state)
        changed = tf.logical_and(now != state[PHASE], state[PHASE] != _FIRST)
        branches = [
            functools.partial(self._reduce_by, number, bucket, state, changed, collectives)
            for number in range(len(self.schemes(collectives.topology)))
        ]
        summed, new, finite = tf.switch_case(tf.cast(now, tf.int32), branches)
        took_over = tf.logical_and(new[PHASE] != state[PHASE], state[PHASE] >= 0)
        new[CHANGES] = state[CHANGES] + tf.cast(took_over, tf.int64)
        state.stage(finite, **new)
        return tf.ensure_shape(summed, bucket.shape)

    def _reduce_by(self, number, bucket, state, changed, collectives):
        """(sum, all schemes' new values, whether they are to be written) of a step by one scheme."""
        scheme = self.schemes(collectives.topology)[number]
        own = _own(number, scheme, state)
        if PHASE in own:  # a scheme that switches itself: whatever it did last, it was not the last step
            own[PHASE] = tf.where(changed, tf.constant(NO_PHASE, tf.int64), own[PHASE])
        if AGE in own:  # thresholds are of a residual that is no more
            own[AGE] = tf.where(changed, tf.zeros([], tf.int64), own[AGE])
        new = {
            key: tf.convert_to_tensor(variable)
            for key, variable in state.items()
            if key in _SHARED or key.partition(".")[0].isdigit()
        }
        drops = scheme.keeps_residual and scheme.share(collectives.topology).holders > 1
        if drops or RESIDUAL not in state:
            inner = State(own, state.lossless)
            summed, inner = self._reduce_sparsely(scheme, bucket, inner, changed, collectives)
            staged, finite, done = inner.staged, inner.verdict(summed), True
        else:
            leaving = tf.logical_and(changed, self.flush)
            kept = own.pop(RESIDUAL, state[RESIDUAL])
            summed, staged, done = self._reduce_exactly(
                scheme, bucket, own, kept, leaving, state.lossless, collectives
            )
            finite = all_finite(summed)
        new |= {_name(number, name): value for name, value in staged.items()}
        # What an exact step could not hand out follows, and lies where that step has left it.
        new[PHASE] = tf.where(done, tf.constant(number, tf.int64), NO_PHASE)
        return summed, new, finite

    def _reduce_sparsely(self, scheme, bucket, inner, changed, collectives):
        """(sum, the scheme's state, which stages a residual as this class keeps it)."""
        share, own = self.share(collectives.topology), scheme.share(collectives.topology)
        if RESIDUAL not in inner or own == share:
            return scheme.reduce(bucket, inner, collectives), inner
        kept = inner[RESIDUAL]
        inner[RESIDUAL] = tf.cond(
            changed,
            lambda: collectives.reduce_scatter(kept, Group.LOCAL, purpose="gradients"),
            lambda: residual.shard_of(kept, own),
        )
        summed = scheme.reduce(bucket, inner, collectives)
        inner.staged[RESIDUAL] = residual.in_place(inner.staged[RESIDUAL], bucket.shape[0], own)
        return summed, inner

    def _reduce_exactly(self, scheme, bucket, own, kept, leaving, lossless, collectives):
        """(sum, new values of the scheme's variables `own` and of `kept`, whether nothing must follow)."""
        share = self.share(collectives.topology)

        def total(x, with_kept):
            inner = State(own, lossless or with_kept)
            return tf.ensure_shape(scheme.reduce(x, inner, collectives), bucket.shape), inner.staged

        summed, left, done, staged = residual.sum_with(kept, bucket, leaving, share, total)
        return summed, staged | {RESIDUAL: left}, done


def _own(number: int, scheme: Communication, state: State) -> dict[str, tf.Variable]:
    """The variables of scheme `number`, by its own names."""
    own = {k.removeprefix(f"{number}."): state[k] for k in state if k.startswith(f"{number}.")}
    if scheme.keeps_residual:
        own |= {name: state[name] for name in _SHARED if name in state}
    return own


def own_name(name: str) -> str:
    """A variable's name in its own scheme, without the numbers of those that `_name` has put before it."""
    return name.rpartition(".")[2]


def _name(number: int, name: str) -> str:
    """Schemes share residual and velocity; what else one remembers is its own."""
    return name if name in _SHARED else f"{number}.{name}"
