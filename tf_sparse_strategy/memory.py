"""What communication schemes remember between steps, for each list of gradients; saved and restored.

One process's variables, made when a list of gradients is first reduced. `Memory` is what a checkpoint
holds of them: every worker's part, gathered by the chief, so that one file serves any number of workers.
"""

import collections
import dataclasses
import gc
import io
import json
import os
import weakref
from collections.abc import Hashable, Iterable, Set
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_sparse_strategy import keras_callers, remembered
from tf_sparse_strategy.bucketing import BucketPlan, BucketSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import scheme_of
from tf_sparse_strategy.communication.switching import EPOCH, own_name
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.residual import LEFT, RESIDUAL, VELOCITY, State
from tf_sparse_strategy.taking_up import take_up
from tf_sparse_strategy.to_chief import are_empty, gathered
from tf_sparse_strategy.turns import Turns


@dataclasses.dataclass
class _OfList:
    """What is remembered of one list of gradients."""

    variables: list[weakref.ref]
    states: list[dict[str, tf.Variable]]  # of each bucket
    left_at: list[tuple[str, int]] | None = None  # counts, when another list took over
    # Restored, of no use to this scheme, by bucket and name.
    unused: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict)


class Memory(tf.train.experimental.PythonState):
    """The schemes' state of all lists of gradients of one strategy, in the order of first use.

    Saving and restoring are collective: all workers call. Restored with the same workers, buckets and
    scheme, every bit is as it was, but for the choice of `Auto`, which is by this run's links. With others,
    residuals and DGC's velocities are put together and cut anew so that their sum over the workers is kept
    (resharding.py), steps go on being counted (with the same scheme also those of schemes within it, and
    `Guarded`'s density), and whatever else a scheme remembers starts afresh. Where sums are
    exact, the first one takes residuals along.
    A list of gradients is known again by its place among the lists and by its shapes and dtypes. Those of
    models that are no more are forgotten when another one is made, or all are saved; Keras's backups hold
    those of one model alone (`archive_of`, `restore`).

    When not to use it: the chief gathers 4 N H bytes, N gradient elements and H residuals (of M nodes, or of
    P workers, as where schemes of both kinds take turns, or `Auto` chooses for nodes of several workers), and
    whoever restores reads as much; where that is too much, save when residuals are empty (`Piecewise`,
    flushed).

    Args:
      communication: the scheme.
      collectives: of this worker.

    Example:
      >>> import tensorflow as tf, tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy()
      >>> with strategy.scope():
      ...     weights = tf.Variable([1.0, 2.0])
      >>> checkpoint = tf.train.Checkpoint(weights=weights, residual=strategy.residual)
    """

    def __init__(self, communication: Communication, collectives: Collectives):
        self.distribute_strategy: tf.distribute.Strategy | None = None  # who saves and restores us
        self._communication = communication
        self._collectives = collectives
        self._lists: dict[BucketPlan, _OfList] = {}
        self.turns = Turns()
        self._restored: list[dict[str, Any]] = []  # for lists that have not been reduced yet
        self._restored_for: set[Hashable] | None = None  # of whose variables' gradients; None for any
        self.is_restored = False  # whether a residual has been
        self.takes_up = True  # whether all sums are this one's, which take residuals along
        self.looks_for_none = False  # whether steps of a lone worker were traced that ignore what is restored
        self._epoch = 0  # of the last `fit`
        # By a model's variables: those that it trains, and its epoch; the last told come last.
        self._epochs: dict[frozenset[Hashable], tuple[frozenset[Hashable], int]] = {}
        self.forgotten = collections.Counter()  # counts of this run, of lists that are no more
        self._fitted: set[Hashable] = set()  # variables of models that `fit` has been called of

    def of(self, plan: BucketPlan, variables: Iterable) -> list[State]:
        """Returns the state of each bucket; made, or filled from what was restored, at first use.

        Args:
          plan: of a list of gradients.
          variables: whose they are; once one of them is held no more, the state is forgotten.
        """
        by_all = tf.executing_eagerly() or keras_callers.is_in_fit()  # or one worker may trace alone
        with tf.init_scope():
            if plan not in self._lists:
                self.forget_gone()
                held = _OfList([weakref.ref(slices.tensorflows(v)) for v in variables], self._initial(plan))
                self._lists[plan] = held
                if not (self._restored and self._is_meant(plan) and self._fill(plan, held.states)):
                    self._go_on(plan)
            # Not one that has gone on since: it counts for itself.
            elif by_all and self._lists[plan].left_at == self._counts_of([plan]):
                remembered.count_on(self._counts_of(self.turns.since(plan)), self._lists[plan].states)
            for other in self.turns.beside(plan):
                self._lists[other].left_at = self._counts_of([other])
        self.turns.take(plan)
        return [State(variables) for variables in self._lists[plan].states]

    def forget_gone(self) -> None:
        """Forgets lists whose variables are gone, which workers notice at different times. Collective."""
        if not self._lists or self._collectives.silent:  # then nobody agrees
            return
        gc.collect()
        kept = [all(ref() is not None for ref in held.variables) for held in self._lists.values()]
        kept = self._collectives.all_reduce(tf.cast(kept, tf.int32), op="max", purpose="memory").numpy()
        for plan, is_kept in zip(list(self._lists), kept, strict=True):
            if not is_kept:
                for state in self._lists.pop(plan).states:
                    for name in filter(remembered.is_of_this_run, state):
                        self.forgotten[own_name(name)] += int(state[name])
                told = self._epochs.items()
                self._epochs = {every: pair for every, pair in told if not every >= plan.keys}
                gone = plan.keys.union(*(every for every, _ in told if every not in self._epochs))
                self._fitted -= gone.difference(*self._epochs)
                self.turns.forget(plan)

    def _counts_of(self, plans: Iterable[BucketPlan]) -> list[tuple[str, int]]:
        held = [pair for _, state in self._buckets_of(plans) for pair in state.items()]
        return [(name, int(number)) for name, number in held if remembered.is_progress(name)]

    def _go_on(self, plan: BucketPlan) -> None:
        """Layers that were frozen or thawed make another list of gradients, with residuals of its own."""
        before = self.turns.since(plan)
        counts = self._counts_of(before)
        for record in self._restored if self._is_meant(plan) else ():
            # Of the same layers, where some have been frozen, or thawed, since.
            if remembered.is_part(record["tensors"], remembered.tensors_of(plan)):
                counts += remembered.counts_of(record, is_alike=record["scheme"] == repr(self._communication))
        remembered.count_on(counts, self._lists[plan].states)
        others = {
            tensor.key
            for bucket, state in self._buckets_of(before)
            for tensor in bucket.tensors
            if RESIDUAL in state or LEFT in state
        }
        common = others & plan.keys
        if common and self._collectives.topology.rank == 0:
            logging.warning(
                "Gradients of other variables than before are reduced, and residuals start from zero: what "
                "has not been sent of %d variables waits until those of before are trained together again.",
                len(common),
            )

    @property
    def buckets(self) -> list[tuple[BucketSpec, State]]:
        """Every bucket of every list, and its variables."""
        return self._buckets_of(self._lists)

    def trained_buckets(self, variables: Iterable) -> list[tuple[BucketSpec, State]]:
        """Those of a model's trainable `variables`; not of a list within another (layers frozen once)."""
        keys = _keys(variables)
        plans = [plan for plan in self._lists if plan.buckets and plan.keys <= keys]
        # Frozen without another `compile`, they are trained on; and a step may train what no model holds.
        plans = plans or [plan for plan in self._lists if plan.has_any(keys)]
        parts = [plan for plan in plans if any(plan.keys < other.keys for other in plans)]
        return self._buckets_of(plan for plan in plans if plan not in parts)

    def _is_meant(self, plan: BucketPlan) -> bool:
        """Whether what was restored may be the list's, and not another model's."""
        return self._restored_for is None or self._is_of(plan, self._restored_for)

    def _is_of(self, plan: BucketPlan, keys: Set[Hashable]) -> bool:
        """Whether the list is of a model with these variables, and not of another that shares some."""
        return plan.has_any(keys) and not plan.has_any(self._fitted - keys)

    def _buckets_of(self, plans):
        return [
            (bucket, State(variables))
            for plan in plans
            for bucket, variables in zip(plan.buckets, self._lists[plan].states, strict=True)
        ]

    def begin_epoch(self, epoch: int, variables: Iterable, frozen: Iterable = ()) -> None:
        """Tells schemes that go by epochs which one begins, from 0 on.

        Args:
          epoch: of a model.
          variables: that it trains.
          frozen: its others, which another model may train, and in another epoch.

        Collective in `fit`, and with `Auto`.
        """
        keys = frozenset(_keys(variables))
        every = keys | _keys(frozen)
        if keras_callers.is_in_fit() and not every <= self._fitted:
            # A new model's, whose first epoch is not to count what goes.
            self.forget_gone()
            self._fitted |= every
        self._epoch = epoch
        self._epochs.pop(every, None)
        self._epochs[every] = keys, epoch
        for plan, held in self._lists.items():
            self._set_epoch(plan, held.states)
        changing = [(bucket, state) for bucket, state in self.buckets if not bucket.is_exact]
        self._communication.review(changing, self._collectives)

    def _set_epoch(self, plan, states) -> None:
        """Its model's, in which another may be trained; of variables that no model holds the last one's."""
        told, own = list(reversed(self._epochs.items())), plan.keys
        trains = [epoch for _, (keys, epoch) in told if own <= keys]
        holds = [epoch for every, (_, epoch) in told if own <= every]  # frozen, and not compiled since
        partly = [epoch for every, (_, epoch) in told if own & every]  # a step may train what no model holds
        epoch = [*trains, *holds, *partly, self._epoch][0]
        for state in states:
            for name in state:
                if own_name(name) == EPOCH:
                    state[name].assign(epoch)

    def _initial(self, plan):
        topology = self._collectives.topology
        schemes = [scheme_of(bucket, self._communication) for bucket in plan.buckets]
        states = [s.state(bucket, topology) for s, bucket in zip(schemes, plan.buckets, strict=True)]
        self._set_epoch(plan, states)
        return states

    def clear(self) -> None:
        """Forgets what has not been sent, and all else, e.g. before a model is trained from new weights.

        All workers call, between steps. It sends nothing.
        """
        self._restored, self._restored_for = [], None
        self.is_restored, self._epoch, self._epochs = False, 0, {}
        for plan, held in self._lists.items():
            held.unused = {}
            self._begin_anew(held.states, self._initial(plan))

    def _begin_anew(self, states, values) -> None:
        for variables, initial in zip(states, values, strict=True):
            for name, held in variables.items():
                if not remembered.is_of_this_run(name):
                    held.assign(initial.get(name, tf.zeros_like(held)))

    # ---- saving ----------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """Everything, as a NumPy archive; collective. Empty but on rank 0."""
        self.forget_gone()
        return self._archive(list(self._lists), self._restored)

    def _archive(self, plans: list[BucketPlan], unclaimed: list[dict[str, Any]]) -> bytes:
        topology, arrays = self._collectives.topology, {}
        records = [remembered.description(plan, self._communication, topology) for plan in plans]
        held = {
            (number, bucket, RESIDUAL if name == LEFT else name): variable
            for number, plan in enumerate(plans)
            for bucket, state in enumerate(self._lists[plan].states)
            for name, variable in sorted(state.items())
            if remembered.is_saved(name, state)
        }
        for key, is_empty in zip(held, are_empty(held.values(), self._collectives), strict=True):
            if not (is_empty and key[-1] in (RESIDUAL, VELOCITY)):
                arrays[key] = gathered(held[key], self._collectives)
        for number, plan in enumerate(plans):
            arrays |= {(number, *key): rows for key, rows in self._lists[plan].unused.items()}
        for record in unclaimed:
            arrays |= {(len(records), *key): rows for key, rows in record["arrays"].items()}
            records.append({key: value for key, value in record.items() if key != "arrays"})
        if topology.rank > 0:
            return b""
        archive, files = io.BytesIO(), {"/".join(map(str, key)): rows for key, rows in arrays.items()}
        np.savez(archive, records=np.frombuffer(json.dumps(records).encode(), np.uint8), **files)
        return archive.getvalue()

    # ---- restoring -------------------------------------------------------------------------------

    def deserialize(self, string_value: bytes) -> None:
        """Restores what `serialize` returned on rank 0. Needs no other worker."""
        self._restored_for = None
        self._restore(string_value, list(self._lists))

    def _restore(self, content: bytes, plans: list[BucketPlan]) -> None:
        """Gives these lists what is theirs; the others' waits for lists to come."""
        with np.load(io.BytesIO(content)) as archive:
            self._restored = json.loads(archive["records"].tobytes())
            for record in self._restored:
                record["arrays"] = {}  # all workers' rows by (bucket, name)
            for file in archive.files:
                if file != "records":
                    number, bucket, name = file.split("/")
                    self._restored[int(number)]["arrays"][int(bucket), name] = archive[file]
        self.is_restored = any(name == RESIDUAL for r in self._restored for _, name in r["arrays"])
        if self.is_restored and not self.takes_up:
            logging.warning(
                "overlap: what the checkpoint's workers had not sent yet is lost. A strategy without overlap "
                "would take it along."
            )
            self._restored, self.is_restored = [], False
        lost = self.looks_for_none and self.is_restored
        for plan in plans:
            held, values = self._lists[plan], self._initial(plan)
            held.unused = {}
            self._fill(plan, values)
            self._begin_anew(held.states, values)
            pairs = zip(held.states, values, strict=True)
            lost |= any(LEFT in restored and LEFT not in variables for variables, restored in pairs)
        if lost:
            logging.warning(
                "%r keeps no residual of some gradients, and a step was made before the checkpoint was "
                "restored: what its workers had not sent of them yet is lost. Restore first.",
                self._communication,
            )
            if self._collectives.topology.num_workers == 1:  # nor is it to be saved again, with other weights
                self._restored, self.is_restored = [], False

    def _fill(self, plan: BucketPlan, values: list[dict[str, tf.Variable]]) -> bool:
        """Gives `values`, the initial ones of the list's buckets, what was restored for it, if it was."""
        own = remembered.tensors_of(plan)
        place = next((i for i, record in enumerate(self._restored) if record["tensors"] == own), None)
        if place is None:
            logging.warning(
                "The checkpoint holds no residuals for the gradients of %s: they start from zero.",
                [tensor.shape for tensor in plan.tensors],
            )
            return False
        record = self._restored.pop(place)  # of all workers: more than this one should hold on to
        topology = self._collectives.topology
        self._lists[plan].unused = take_up(record, plan, values, self._communication, topology)
        self._set_epoch(plan, values)  # this run's: it may have begun after what was saved
        return True

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str, variables: Iterable) -> None:
        """Writes a file of a model's `variables`, as a whole or not at all; collective, rank 0 writes.

        Where there is nothing to save there is no file.
        """
        content = self.archive_of(variables)
        if content:
            tf.io.gfile.makedirs(os.path.dirname(path))
            partial = os.path.join(os.path.dirname(path), "residual.partial")  # of a kill the next takes it
            with tf.io.gfile.GFile(partial, "wb") as file:
                file.write(content)
            tf.io.gfile.rename(partial, path, overwrite=True)

    def load(self, path: str, variables: Iterable) -> None:
        """Restores the file that `save` wrote for a model's `variables`, if there is one."""
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                self.restore(file.read(), variables)

    def archive_of(self, variables: Iterable) -> bytes:
        """As `serialize`, of a model's `variables` alone; empty, too, where there is nothing. Collective."""
        keys = _keys(variables)
        plans = [plan for plan in self._lists if self._is_of(plan, keys)]
        is_for_others = self._restored_for is not None and self._restored_for.isdisjoint(keys)
        unclaimed = [] if is_for_others else self._restored
        held = [self._lists[plan] for plan in plans]
        if not unclaimed and not any(any(each.states) or each.unused for each in held):
            return b""
        return self._archive(plans, unclaimed)

    def restore(self, content: bytes, variables: Iterable) -> None:
        """Restores what `archive_of` returned on rank 0 for a model's `variables`. Needs no other worker."""
        if content:
            keys = _keys(variables)
            self._restored_for = keys or None  # of one that is not built nothing is known
            self._restore(content, [plan for plan in self._lists if self._is_of(plan, keys)])


def _keys(variables: Iterable) -> set[Hashable]:
    # Among a layer's variables tf_keras has the table of its vocabulary, which is none.
    return {key_of(variable) for variable in variables if hasattr(slices.tensorflows(variable), "name")}


def key_of(variable: Any) -> Hashable:
    """By which a variable's gradients are known, TensorFlow's or Keras's."""
    variable = slices.tensorflows(variable)
    return getattr(variable, "_unique_id", variable.name)
