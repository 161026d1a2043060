"""All updates of one strategy that are divided over the workers."""

import collections
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding import clipping, separable, slices
from tf_sparse_strategy.embedding.optimizer_copies import configuration
from tf_sparse_strategy.embedding.partition import ChunkPartition
from tf_sparse_strategy.gradient_kinds import is_set
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.overlap import chunks, search
from tf_sparse_strategy.overlap.divided import Divided
from tf_sparse_strategy.overlap.sharded import ShardedUpdate
from tf_sparse_strategy.overlap.step import Step
from tf_sparse_strategy.overlap.tuner import Tuner
from tf_sparse_strategy.overlap.update import ChunkedUpdate, counts_by_itself, is_setting, key
from tf_sparse_strategy.overlap.update_at_once import UpdateAtOnce
from tf_sparse_strategy.overlap.variables import may_be_behind, owner_of


class ChunkedUpdates:
    """Makes a `ChunkedUpdate` of each optimizer that is built, and has all of them gather in a step.

    Args:
      overlap: what the user asked for.
      collectives: of this worker, one of several.
    """

    def __init__(self, overlap: Divided, collectives: Collectives):
        self.overlap = overlap
        self.step = Step()
        self._kind = UpdateAtOnce if isinstance(overlap, ShardedUpdate) else ChunkedUpdate
        self._collectives = collectives
        self._updates: list[ChunkedUpdate] = []
        self._made = 0  # updates so far, closed ones included
        # The number of the last update that has run: functions that were traced before it was made do not
        # gather its weights.
        self._last = plain_variable(0, "CPU:0", dtype=tf.int32)

    def of(self, optimizer: Any) -> ChunkedUpdate | None:
        """The divided update of `optimizer`, or None."""
        return next((u for u in self._updates if u.optimizer is optimizer), None)

    def is_inner(self, optimizer: Any) -> bool:
        """Whether `optimizer` is one of ours, which updates chunks."""
        return any(u.inner is optimizer for u in self._updates)

    def tuner_of(self, model: Any) -> Tuner | None:
        """What tunes the update of the optimizer that `model` was compiled with, or None."""
        optimizer = getattr(model, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        update = None if optimizer is None else self.of(optimizer)
        if self.overlap.is_tuned and type(optimizer).__name__ == "MultiOptimizer":
            text = "overlap=%r: buckets of several optimizers are not tuned; they keep %d bytes."
            logging.log_first_n(logging.WARNING, text, 1, self.overlap, search.START)
        return None if update is None else update.tuner

    @property
    def gathers(self) -> bool:
        """Whether a step begins by gathering weights."""
        return any(u.is_ready and u.leaves_behind for u in self._updates)

    # ---- making ---------------------------------------------------------------------------------

    def check(self, optimizer: Any, variables: list) -> None:
        """To be called before an optimizer is built, so that one that is refused remains unbuilt.

        Raises:
          ValueError: the optimizer, or a variable, needs more than each element by itself.
          RuntimeError: a step is being traced.
        """
        if not self._concerns(optimizer):
            return
        self._check(optimizer)
        divided = [v for v in variables if self._is_divided(v)]
        times = collections.Counter(map(key, divided))
        if twice := [variable.name for variable in divided if times[key(variable)] > 1]:
            raise ValueError(
                f"overlap={self.overlap!r}: {type(optimizer).__name__} is built on the variable {twice[0]!r} "
                "twice. Name each variable once, and add up its gradients."
            )
        if divided and (self.step.running or not tf.executing_eagerly()):
            raise RuntimeError(
                f"overlap={self.overlap!r}: {type(optimizer).__name__} is built within a step, which began "
                "without it. Call optimizer.build(model.trainable_variables) before the "
                "first step."
            )
        if self._kind.leaves_behind:
            for variable in divided:
                self._check_variable(variable)
        for update in self.owners(divided):
            update.check_write(divided[0].name)

    def refuse_others(self, optimizer: Any, variables: list) -> None:
        """Raises ValueError where an optimizer is to update what is divided for another one."""
        if owners := self.owners(variables):
            raise ValueError(
                f"overlap={self.overlap!r}: {type(optimizer).__name__} is applied to variables on which "
                f"another optimizer, {type(owners[0].optimizer).__name__}, was built later. Use one "
                "optimizer for each variable, or leave out overlap."
            )
        if not self.is_inner(optimizer) and any(map(_is_chunk, optimizer.variables)):
            raise ValueError(
                f"overlap={self.overlap!r}: another optimizer was built later on some variables of "
                f"{type(optimizer).__name__}, which has nothing but parts of its slots since. Use one "
                "optimizer for each variable, or leave out overlap."
            )

    def owners(self, variables: Iterable) -> list[ChunkedUpdate]:
        """The updates that divide some of the variables."""
        owners = {owner_of(slices.tensorflows(v)) for v in variables}
        return [update for update in self._updates if update in owners]

    def add(self, optimizer: Any, variables: list) -> None:
        """Divides the update of an optimizer that has been checked and is being built.

        Raises:
          ValueError: its slots are not each element's.
        """
        divided = [v for v in variables if self._is_divided(v)] if self._concerns(optimizer) else []
        if not divided:
            return
        self._forget()
        inner, shards = self._make_inner(optimizer, variables, divided)
        numbers = [v for v in inner.variables if len(v.shape) == 0 and not is_setting(inner, v)]
        if numbers and not counts_by_itself(optimizer):
            raise ValueError(
                f"overlap={self.overlap!r}: {type(optimizer).__name__} keeps a number for all variables, "
                "which is not in step with chunks. Use SGD, Adam or AdamW, or leave out overlap."
            )
        self._take_over(divided)
        self._made += 1
        fusion = search.START if self.overlap.is_tuned else self.overlap.fusion
        update = self._kind(
            self._made, optimizer, divided, inner, shards, fusion, self._collectives, self.step
        )
        if self.overlap.is_tuned:
            facts = {
                "overlap": type(self.overlap).__name__,
                "variables": [[list(v.shape), tf.as_dtype(v.dtype).name] for v in divided],
                "optimizer": type(optimizer).__name__,
                "nodes": list(self._collectives.topology.nodes),
                "gpu": bool(tf.config.list_logical_devices("GPU")),
            }
            update.tuner = Tuner(update, self.overlap.tuning, facts, self._collectives)
        self._updates.append(update)

    def _concerns(self, optimizer):
        return not self.step.making and not separable.wraps_another(optimizer)

    def refuse_tf_keras(self) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            f"overlap={self.overlap!r} needs an optimizer of Keras 3; this gradient comes from tf_keras. "
            "Leave out overlap."
        )

    def _check(self, optimizer):
        reason = separable.refused_optimizer(optimizer)
        if reason is not None and not hasattr(optimizer, "take_norms_of_wholes"):
            raise ValueError(
                f"overlap={self.overlap!r} cannot divide the update of {type(optimizer).__name__}: {reason}, "
                "and a worker updates only chunks. Use SGD, Adam, AdamW, LARS or LAMB of lars_pto, or leave "
                "out overlap."
            )
        if optimizer.use_ema and self._kind.leaves_behind:
            raise ValueError(
                f"overlap={self.overlap!r} and use_ema=True: the average would be taken of weights that are "
                "behind. Leave out one of them."
            )

    def _is_divided(self, variable):
        return (
            slices.of(variable) is None
            and tf.as_dtype(variable.dtype).is_floating
            and not getattr(variable, "overwrite_with_gradient", False)
            and 0 not in variable.shape
            and may_be_behind(slices.tensorflows(variable))
            and not self.overlap.excludes(getattr(variable, "path", variable.name).partition(":")[0])
        )

    def _check_variable(self, variable):
        if getattr(variable, "constraint", None) is not None:
            raise ValueError(
                f"overlap={self.overlap!r}: the variable {variable.name!r} has the constraint "
                f"{type(variable.constraint).__name__}, which is applied to whole weights after the update. "
                "Leave out the constraint, or name the variable in exclude=[...]."
            )

    def _forget(self):
        """Forgets optimizers that are gone: each would cost every function traced from now on.

        It does not matter that garbage is collected at different times: nothing is gathered for them.
        """
        gc.collect()
        gone = [u for u in self._updates if u.optimizer is None and not u.is_ahead]
        for update in gone:
            update.release()
        self._updates = [u for u in self._updates if u not in gone]

    def _take_over(self, variables):
        """From an optimizer that was built on the same variables before."""
        for update in self.owners(variables):
            update.close()
            self._updates.remove(update)

    def _make_inner(self, optimizer, variables, divided):
        """(an optimizer like this one on chunks of all variables, the chunks by variable)."""
        workers = self._collectives.topology.num_workers
        chosen = {key(v) for v in divided}
        strategy = optimizer._distribution_strategy
        config = _config(optimizer)
        making = while_set(self.step, making=True)
        with making, strategy.scope(), strategy.extended.alone():
            shards = {}
            for variable in variables:
                elements = chunks.size(variable.shape.num_elements(), workers)
                zeros = tf.zeros([elements if key(variable) in chosen else 0], variable.dtype)
                # Named as the whole, which `update_step` may ask.
                scope, _, name = slices.tensorflows(variable).name.partition(":")[0].rpartition("/")
                with tf.name_scope(f"{scope}/" if scope else ""):
                    shards[key(variable)] = keras.Variable(zeros, trainable=False, name=name)
                path = getattr(variable, "path", variable.name)  # TensorFlow's own have none
                shards[key(variable)]._path = path  # slots are named after it
                is_replaced = getattr(variable, "overwrite_with_gradient", False)  # and has no slots
                shards[key(variable)]._overwrite_with_gradient = is_replaced
            inner = self._made_from(config, type(optimizer))
            inner.build(list(shards.values()))
        return inner, shards

    def _made_from(self, config, optimizer_class):
        try:
            return optimizer_class.from_config(config)
        except Exception as error:
            name = optimizer_class.__name__
            raise ValueError(
                f"overlap={self.overlap!r} makes another {name} from get_config(), which failed: {error} "
                f"Give the setting to {name}'s constructor, or change it after optimizer.build()."
            ) from error

    # ---- a step ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step_under_way(self) -> Iterator[list[tf.Tensor]]:
        """A step of this worker: begins by gathering the weights if chunks are ahead of them.

        Yields:
          Tensors that are there when all weights are.
        """
        updates = [u for u in self._updates if u.is_ready]
        known = tf.debugging.assert_less_equal(
            self._last.read_value(), max((u.number for u in updates), default=0),
            "overlap=DeAR: this function was traced before the optimizer was built, and does not gather its "
            "weights. Call strategy.synchronize() on all workers before it.",
        )  # fmt: skip
        with tf.control_dependencies([known]):
            gathered = [tensor for update in updates for tensor in update.begin()]
        with self.step.under_way(updates):
            yield gathered

    @tf.autograph.experimental.do_not_convert
    def apply(
        self,
        optimizer: Any,
        pairs: list,
        learning_rate: Any,
        check: Callable[[list], list],
        reduce: Callable[[list], list],
    ) -> tuple[list, bool]:
        """Updates what is divided of an optimizer's `[(gradient, variable), …]`.

        Args:
          optimizer: one whose update is divided.
          pairs: this worker's gradients.
          learning_rate: a scalar.
          check: of pairs that are divided; masks the gradients of rows of no account.
          reduce: takes pairs that are not divided; does what `check` does, and returns them with sums
            over the workers.

        Returns:
          (the other pairs, whether they are summed and clipped already: a norm of all gradients needs them).

        Raises:
          ValueError: a divided variable's gradient is sparse.
        """
        update = self.of(optimizer)
        others = [pair for pair in pairs if not update.divides(pair[1])]
        mine = [pair for pair in pairs if update.divides(pair[1])]
        for gradient, variable in mine:
            if isinstance(gradient, tf.IndexedSlices):
                raise ValueError(
                    f"overlap={self.overlap!r}: the gradient of {variable.name!r} is a tf.IndexedSlices. "
                    "Name the variable in exclude=[...], so that it is summed and updated as before."
                )
        if not mine:
            return others, False
        together = bool(others) and is_set(optimizer.global_clipnorm)
        squares = 0.0
        if together:
            beside = [variable for _, variable in others]
            clips_rows = getattr(optimizer, "clips_rows", False)
            sums = reduce(clipping.once_each(optimizer, others))
            summed, squares = clipping.with_squares(sums, beside, clips_rows)
        if update.leaves_behind:
            self.step.check_update(update)
        factor = update.update(*zip(*check(mine), strict=True), learning_rate, squares)
        if update.leaves_behind:
            self._last.assign(tf.maximum(self._last.read_value(), update.number))
        if together:
            others = list(zip(clipping.scaled(summed, factor), beside, strict=True))
        return others, together

    def synchronize(self) -> None:
        """Gathers weights and slots wherever chunks are ahead. Eager, collective."""
        for update in self._updates:
            update.synchronize()
        self._last.assign(0)


def _config(optimizer):
    """What makes an optimizer like this one, but for the rate, which it is told, and what is not divided."""
    config = configuration(optimizer) | {"learning_rate": 0.0}
    off = {"use_ema": False, "gradient_accumulation_steps": None}
    return config | {name: value for name, value in off.items() if name in config}


def _is_chunk(variable: Any) -> bool:
    held = slices.of(variable)
    return held is not None and isinstance(held.partition, ChunkPartition)
