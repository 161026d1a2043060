"""One optimizer's update, divided over the workers: chunks, their slots, and when what is gathered."""

import numbers
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding import clipping, slices
from tf_sparse_strategy.overlap import chunks
from tf_sparse_strategy.overlap.plan import plan
from tf_sparse_strategy.overlap.step import APPLIED_TWICE, Step

_SETTINGS = (numbers.Number, tf.Variable, tf.Tensor, type(None))  # and not e.g. lists of slots
# What counts is in the variables; in the chunks, and the weights have been gathered from them; in the chunks,
# and the variables are behind; another optimizer has taken over.
_WHOLE, _GATHERED, _AHEAD, _CLOSED = range(4)


class ChunkedUpdate:
    """The variables of one optimizer, of each of which a worker updates its own chunk; as in DeAR.

    Either the variables hold what counts, and a chunk is cut from them before the next update; or the
    chunks are ahead of them, after a step, until they are gathered. That is so on all workers alike.

    Attributes:
      leaves_behind: whether variables are behind after an update.

    Args:
      number: of this update among the strategy's, from 1.
      optimizer: of Keras 3, being built; its slots may be missing yet.
      variables: those of its variables that are divided, in the order of the forward pass.
      inner: an optimizer like `optimizer`, built on chunks of all its variables, empty for the others.
      shards: these chunks, by `key` of the variable.
      fusion: bytes of a bucket, to begin with.
      collectives: of this worker.
      step: what the step under way has done.
    """

    leaves_behind = True

    def __init__(
        self, number: int, optimizer: Any, variables: Sequence, inner: Any, shards: dict, fusion: int,
        collectives: Collectives, step: Step,
    ):  # fmt: skip
        self.number, self.inner, self._optimizer = number, inner, weakref.ref(optimizer)
        self._collectives, self._step = collectives, step
        self._shards = shards
        self._pairs = [(slices.tensorflows(v), slices.tensorflows(shards[key(v)])) for v in variables]
        self._positions = {key(v): i for i, v in enumerate(variables)}
        self._specs = _specs(self._pairs)
        self.rebucket(fusion)
        self.tuner: Any = None  # the Tuner of its buckets, if any
        self._slots = None
        self._state = plain_variable(_WHOLE, "CPU:0", dtype=tf.int32)
        for whole, _ in self._pairs:
            whole.owner = self

    @property
    def optimizer(self) -> Any:
        """The optimizer; None once nobody holds it."""
        return self._optimizer()

    @property
    def is_ready(self) -> bool:
        """Whether the optimizer has all its slots."""
        return self._slots is not None or self.optimizer is not None and self.optimizer.built

    # ---- buckets --------------------------------------------------------------------------------

    def plan_of(self, fusion: int) -> tuple[tuple[int, ...], ...]:
        """Positions of the variables in each bucket of at most `fusion` bytes, the last layers' first."""
        return plan(self._specs, fusion)

    def rebucket(self, fusion: int) -> None:
        """Functions traced from now on use buckets of `fusion` bytes; all workers call.

        Nothing moves: who owns what depends on the variables alone, and so functions of any size may
        take turns.
        """
        self.fusion = fusion
        self._buckets = self.plan_of(fusion)

    # ---- in a step ------------------------------------------------------------------------------

    def begin(self) -> list[tf.Tensor]:
        """Gathers the weights, in the order of the forward pass, if chunks are ahead.

        Returns:
          Tensors that are there when the last weights are.
        """
        self._find_slots()
        state = self._state.read_value()
        ahead = tf.equal(state, _AHEAD)
        before = []
        for number, positions in enumerate(reversed(self._buckets)):
            pairs = [self._pairs[p] for p in reversed(positions)]
            # One after the other: Horovod would join those that are ready at once.
            with tf.control_dependencies(before):
                before = [tf.cond(ahead, self._gathering(pairs, number), _nothing)]
        with tf.control_dependencies(before):  # a step that fails before it has them has not gathered them
            self._state.assign(tf.where(ahead, _GATHERED, state))
        return before

    def update(
        self, gradients: Sequence, variables: Sequence, learning_rate: Any, others: tf.Tensor | float = 0.0
    ) -> tf.Tensor | None:
        """Sums the workers' gradients and updates this worker's chunks.

        Args:
          gradients: of this worker, dense.
          variables: of the gradients; some or all of those that are divided.
          learning_rate: a scalar.
          others: sum of the squares of the summed gradients that the same optimizer applies elsewhere.

        Returns:
          What all gradients were multiplied by, so that the norm of all of them is clipped, or None.
        """
        state = self._state.read_value()
        once = tf.debugging.assert_none_equal(state, _AHEAD, message=APPLIED_TWICE)
        still_open = tf.debugging.assert_less(
            state, _CLOSED,
            message="overlap: another optimizer was built on these variables; this one no longer "
            "updates them.",
        )  # fmt: skip
        with tf.control_dependencies([once, still_open]):
            whole = tf.equal(state, _WHOLE)
        cut = tf.cond(whole, self._cut, _nothing)
        owned = sums = self._reduce_scatter(gradients, variables)
        owned, factor = clipping.clip_parts(self.optimizer, owned, self._collectives, others)
        shards = [self._shards[key(v)] for v in variables]
        self._decay(variables, shards)
        # Not that of its own class, if it has one: the optimizer's has been called, and has counted.
        _backend_of(self.inner)._backend_update_step(self.inner, owned, shards, learning_rate)
        self._finish([cut, *sums], variables)
        return factor

    def divides(self, variable: Any) -> bool:
        """Whether `variable` is among the divided ones."""
        return key(variable) in self._positions

    def part_beside(self, variable: Any) -> tuple[Any, Any] | None:
        """(chunk, its partition) that a slot beside `variable` is made from; None: it is made whole."""

    def _finish(self, summed, variables):
        del variables  # of a step all that are ahead are gathered, by the next
        with tf.control_dependencies(summed):  # a step that fails before has no chunks that are ahead
            self._state.assign(_AHEAD)
            self._step.note_update(self)

    def _reduce_scatter(self, gradients, variables):
        """This worker's chunk of each gradient's sum, in order."""
        place = {self._positions[key(v)]: i for i, v in enumerate(variables)}
        owned = [None] * len(gradients)
        for number, positions in enumerate(self._buckets):
            present = [p for p in positions if p in place]
            if not present:
                continue
            wholes = [self._pairs[p][0] for p in present]
            # Gradients of a scaled loss are float32 beside float16 weights: rounded when they are summed, in
            # a bucket of twice the bytes then.
            dtype = chunks.widest([*(gradients[place[p]].dtype for p in present), *(w.dtype for w in wholes)])
            packed = [  # TensorFlow may not know a shape, e.g. behind the loop of an LSTM
                tf.ensure_shape(tf.cast(gradients[place[p]], dtype), whole.shape)
                for p, whole in zip(present, wholes, strict=True)
            ]
            workers = self._collectives.topology.num_workers
            summed = self._collectives.reduce_scatter(
                chunks.pack(packed, workers), purpose=f"gradients_{self.number}_{number}"
            )
            sizes = [self._pairs[p][1].shape[0] for p in present]
            for p, part in zip(present, tf.split(summed, sizes), strict=True):
                owned[place[p]] = part
        return owned

    def _decay(self, variables, shards):
        """Decays chunks; of which variables is decided by their own names."""
        inner = self.inner
        inner._learning_rate = self.optimizer._learning_rate
        for name, value in vars(self.optimizer).items():  # e.g. momentum, changed since it was built
            if not name.startswith("_") and isinstance(value, _SETTINGS):
                setattr(inner, name, value)
        inner._exclude_from_weight_decay_cache = {
            inner._var_key(shard): self.optimizer._use_weight_decay(slices.tensorflows(variable))
            for variable, shard in zip(variables, shards, strict=True)
        }
        inner._apply_weight_decay(shards)

    # ---- between chunks and wholes --------------------------------------------------------------

    @property
    def is_ahead(self) -> bool:
        """Whether the chunks are ahead of the variables; the same on all workers."""
        with tf.init_scope():
            return int(self._state.numpy()) in (_GATHERED, _AHEAD)

    def synchronize(self) -> None:
        """Gathers weights and slots if chunks are ahead. Eager, collective."""
        if not self.is_ahead:
            return
        pairs = self._pairs + self._slots
        for bucket in BucketPlan.build(_specs(pairs), self.fusion).buckets:
            self._gathering([pairs[p] for p in bucket.positions], "all")()
        self._state.assign(_WHOLE)

    def close(self) -> None:
        """Leaves the variables to another optimizer.

        Raises:
          RuntimeError: the chunks are ahead.
        """
        self.check_write(self._pairs[0][0].name)
        self._state.assign(_CLOSED)
        self.release()

    def release(self) -> None:
        """Lets the variables forget this update."""
        for whole, _ in self._pairs + (self._slots or []):
            if whole.owner is self:
                whole.owner = None

    def _cut(self):
        rank, workers = self._collectives.topology.rank, self._collectives.topology.num_workers
        for whole, shard in self._pairs + self._slots:
            shard.values[0].assign(chunks.own(whole.values[0].read_value(), workers, rank))
        return tf.zeros([])

    def _gathering(self, pairs, number):
        """A function that gives the first of each pair what all workers hold in the second.

        Its name is this update's own: which old updates are still known differs between workers.
        """
        workers = self._collectives.topology.num_workers

        def gather():
            parts = [shard.values[0].read_value() for _, shard in pairs]
            gathered = self._collectives.all_gather(
                tf.concat(parts, axis=0), purpose=f"weights_{self.number}_{number}"
            )
            columns = tf.split(
                tf.reshape(gathered, [workers, -1]), [part.shape[0] for part in parts], axis=1
            )
            for (whole, _), column in zip(pairs, columns, strict=True):
                whole.values[0].assign(chunks.whole(column, whole.shape))
            return tf.zeros([])

        return gather

    def _find_slots(self):
        """Pairs each slot of the optimizer with the inner one's; once, when all have been made."""
        if self._slots is not None:
            return
        mine, inner = _slots_of(self.optimizer), _slots_of(self.inner)
        if len(mine) != len(inner):
            raise ValueError(
                f"overlap: {type(self.optimizer).__name__} has {len(mine)} slots, but one made by from_config"
                f"(get_config()) has {len(inner)}. Let its get_config return all that its constructor takes."
            )
        pairs = list(zip(mine, inner, strict=True))
        for whole, part in pairs:
            if len(part.shape) == 0:
                part._value = whole._value  # the optimizer counts
        self._slots = self._take_slots(
            (whole, part) for whole, part in pairs if len(part.shape) > 0 and 0 not in part.shape
        )
        self.inner._iterations = self.optimizer._iterations
        if hasattr(self.inner, "take_norms_of_wholes"):
            self.inner.take_norms_of_wholes(
                self.optimizer, lambda sums: self._collectives.all_reduce(sums, purpose="layer_norms")
            )

    def _take_slots(self, pairs):
        """The slots that wholes and chunks take turns in holding, from (optimizer's, inner's)."""
        slots = [(slices.tensorflows(whole), slices.tensorflows(part)) for whole, part in pairs]
        for whole, _ in slots:
            whole.owner = self
        return slots

    # ---- readers and writers --------------------------------------------------------------------

    def check_read(self, name: str) -> None:
        """Raises RuntimeError where the variable's value is not the newest."""
        if self._step.running:
            # A function that was traced before has updated without this step's knowing.
            has_run = tf.executing_eagerly() and int(self._state.numpy()) == _AHEAD
            if has_run or self._step.has_updated(self):
                raise RuntimeError(
                    f"the variable {name!r} is read after its update in the same step; with overlap=DeAR the "
                    "new value is on no worker before the next step. Read it before, or leave out overlap."
                )
        elif tf.executing_eagerly() and self.is_ahead:
            raise RuntimeError(
                f"the variable {name!r} is behind: with overlap=DeAR each worker holds the newest values of "
                "its own chunk only. Call strategy.synchronize() on all workers first; not on one alone, "
                "which would wait for the others."
            )

    def check_write(self, name: str) -> None:
        """Raises RuntimeError where the next step would not see what is written."""
        if self._step.running:
            raise RuntimeError(
                f"the variable {name!r} is assigned to within a step; with overlap=DeAR the next step takes "
                "its value from the workers' chunks. Assign to it between steps, after "
                "strategy.synchronize(), or leave out overlap."
            )
        self.check_read(name)


def key(variable: Any) -> int:
    """What tells a variable from others, be it Keras's or the TensorFlow variable inside."""
    return id(slices.tensorflows(variable))


def is_setting(optimizer: Any, variable: Any) -> bool:
    """Whether `variable` counts the optimizer's steps or is its rate, and so is no slot."""
    return variable is optimizer._iterations or variable is optimizer._learning_rate


def _slots_of(optimizer):
    """Its slots, but for averages of weights, and for gradients that each worker accumulates for itself."""
    names = ("_model_variables_moving_average", "_accumulated_gradients")
    apart = {id(v) for name in names for v in getattr(optimizer, name, ())}
    return [v for v in optimizer.variables if not is_setting(optimizer, v) and id(v) not in apart]


def counts_by_itself(optimizer: Any) -> bool:
    """Whether a number that `optimizer` keeps for all variables changes once a step, as in Nadam."""
    return type(optimizer)._backend_update_step is not _backend_of(optimizer)._backend_update_step


def _backend_of(optimizer: Any) -> type:
    """Keras's own class of optimizers for TensorFlow, from which that of `optimizer` is derived."""
    return next(kind for kind in type(optimizer).__mro__ if kind.__name__ == "TFOptimizer")


def _specs(pairs):
    return [
        TensorSpec(i, tuple(whole.shape), whole.dtype.name, whole.dtype.size)
        for i, (whole, _) in enumerate(pairs)
    ]


def _nothing():
    return tf.zeros([])
