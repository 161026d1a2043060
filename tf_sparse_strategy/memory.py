"""What communication schemes remember between steps, for each list of gradients; saved and restored.

One process's variables, made when a list of gradients is first reduced. `Memory` is what a checkpoint
holds of them: every worker's part, gathered by the chief, so that one file serves any number of workers.
"""

import io
import json
import os
from collections.abc import Hashable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_sparse_strategy import remembered, resharding
from tf_sparse_strategy.agreement import pieces
from tf_sparse_strategy.bucketing import BucketPlan, BucketSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import scheme_of
from tf_sparse_strategy.communication.switching import NO_PHASE, PHASE, own_name
from tf_sparse_strategy.residual import LEFT, RESIDUAL, VELOCITY, WAITS, State, variable

EPOCH = "epoch"  # the state's name of the epoch of Keras's `fit`


class Memory(tf.train.experimental.PythonState):
    """The schemes' state of all lists of gradients of one strategy, in the order of first use.

    Saving and restoring are collective: all workers call. Restored with the same workers, buckets and
    scheme, every bit is as it was, but for the choice of `Auto`, which is by this run's links. With others,
    residuals and DGC's velocities are put together and cut anew so that their sum over the workers is kept
    (resharding.py), steps go on being counted (with the same scheme also those of schemes within it, and
    `Guarded`'s density), and whatever else a scheme remembers starts afresh. Where sums are
    exact, the first one takes residuals along.
    A list of gradients is known again by its place among the lists and by its shapes and dtypes.

    When not to use it: the chief gathers 4 N H bytes, N gradient elements and H residuals (of M nodes, or of
    P workers, as where schemes of both kinds take turns, or `Auto` chooses for nodes of several workers);
    where that is too much, save when residuals are empty (`Piecewise`, flushed).

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
        self._lists: dict[BucketPlan, list[dict[str, tf.Variable]]] = {}
        self._latest: dict[Hashable, BucketPlan] = {}  # by variable
        self._restored: list[dict[str, Any]] = []
        self.is_restored = False  # whether a residual has been
        self.looks_for_none = False  # whether one worker's functions were traced that will not take one up
        self._epoch = 0

    def of(self, plan: BucketPlan) -> list[State]:
        """Returns the state of each bucket; made, or filled from what was restored, at first use."""
        if plan not in self._lists:
            with tf.init_scope():
                self._lists[plan] = self._initial(plan)
                if not (self._restored and self._fill(plan, self._lists[plan])):
                    self._go_on(plan)
        self._latest.update({tensor.key: plan for tensor in plan.tensors})
        return [State(variables) for variables in self._lists[plan]]

    def _go_on(self, plan: BucketPlan) -> None:
        """Layers that were frozen or thawed make another list of gradients, with residuals of its own."""
        before = [
            (bucket, state)
            for other, states in self._lists.items()
            if other is not plan and {t.key for t in other.tensors} & {t.key for t in plan.tensors}
            for bucket, state in zip(other.buckets, states, strict=True)
        ]
        held = [pair for _, state in before for pair in state.items()]
        counts = [(name, int(number)) for name, number in held if remembered.is_progress(name)]
        for record in self._unclaimed():
            # Of the same layers, where some have been frozen, or thawed, since.
            if remembered.is_part(record["tensors"], self._description(plan)["tensors"]):
                counts += remembered.counts_of(record, is_alike=record["scheme"] == repr(self._communication))
        remembered.count_on(counts, self._lists[plan])
        others = {
            tensor.key
            for bucket, state in before
            for tensor in bucket.tensors
            if RESIDUAL in state or LEFT in state
        }
        common = others & {tensor.key for tensor in plan.tensors}
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

    @property
    def trained_buckets(self) -> list[tuple[BucketSpec, State]]:
        """Without those of lists of which variables are in another that was traced later: frozen, thawed."""
        return self._buckets_of(
            plan for plan in self._lists if all(self._latest[tensor.key] == plan for tensor in plan.tensors)
        )

    def _buckets_of(self, plans):
        return [
            (bucket, State(variables))
            for plan in plans
            for bucket, variables in zip(plan.buckets, self._lists[plan], strict=True)
        ]

    @property
    def has_content(self) -> bool:
        """Whether there is anything to save; the same on all workers."""
        return any(map(any, self._lists.values())) or bool(self._unclaimed())

    def begin_epoch(self, epoch: int) -> None:
        """Tells schemes that go by epochs which one begins, from 0 on."""
        self._epoch = epoch
        for states in self._lists.values():
            self._set_epoch(states)
        changing = [(bucket, state) for bucket, state in self.buckets if not bucket.is_exact]
        self._communication.review(changing, self._collectives)

    def _set_epoch(self, states) -> None:
        for state in states:
            for name in state:
                if own_name(name) == EPOCH:
                    state[name].assign(self._epoch)

    def _initial(self, plan):
        topology = self._collectives.topology
        schemes = [scheme_of(bucket, self._communication) for bucket in plan.buckets]
        states = [s.state(bucket, topology) for s, bucket in zip(schemes, plan.buckets, strict=True)]
        self._set_epoch(states)
        return states

    def clear(self) -> None:
        """Forgets what has not been sent, and all else, e.g. before a model is trained from new weights.

        All workers call, between steps. It sends nothing.
        """
        self._restored, self.is_restored, self._epoch = [], False, 0
        for plan, states in self._lists.items():
            self._begin_anew(states, self._initial(plan))

    def _begin_anew(self, states, values) -> None:
        for variables, initial in zip(states, values, strict=True):
            for name, held in variables.items():
                if not remembered.is_of_this_run(name):
                    held.assign(initial.get(name, tf.zeros_like(held)))

    # ---- saving ----------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """Everything, as a NumPy archive; collective. Empty but on rank 0."""
        records, arrays = [], {}
        for number, (plan, states) in enumerate(self._lists.items()):
            records.append(self._description(plan))
            for bucket, state in enumerate(states):
                for name, held in sorted(state.items()):
                    if remembered.is_saved(name, state):
                        saved = RESIDUAL if name == LEFT else name
                        arrays[f"{number}/{bucket}/{saved}"] = self._gather(held)
        for record in self._unclaimed():
            arrays |= {f"{len(records)}/{key}": rows for key, rows in record["arrays"].items()}
            records.append({key: value for key, value in record.items() if key != "arrays"})
        if self._collectives.topology.rank > 0:
            return b""
        archive = io.BytesIO()
        np.savez(archive, records=np.frombuffer(json.dumps(records).encode(), np.uint8), **arrays)
        return archive.getvalue()

    def _gather(self, held: tf.Variable) -> np.ndarray:
        """[P, ...] on rank 0: every worker's value, in rank order."""
        workers = self._collectives.topology.num_workers
        to_chief = [1] + [0] * (workers - 1)
        parts = [
            self._collectives.all_to_all(part[tf.newaxis], to_chief, purpose="memory")[0]
            for part in pieces(tf.reshape(held, [-1]), senders=workers)
        ]
        rows = np.concatenate(parts, axis=1)
        return rows.reshape([len(rows), *held.shape])

    def _unclaimed(self) -> list[dict[str, Any]]:
        """What was restored for lists of gradients that this run has not reduced yet."""
        claimed = [self._description(plan)["tensors"] for plan in self._lists]
        left = []
        for record in self._restored:
            if record["tensors"] in claimed:
                claimed.remove(record["tensors"])
            else:
                left.append(record)
        return left

    def _description(self, plan: BucketPlan) -> dict[str, Any]:
        tensors = plan.tensors
        return {
            "tensors": [[list(tensor.shape), tensor.dtype] for tensor in tensors],
            "buckets": [list(bucket.positions) for bucket in plan.buckets],
            "places": [[s.holder, s.shard] for s in self._shares()],
            "nodes": list(self._collectives.topology.nodes),
            "scheme": repr(self._communication),
        }

    def _shares(self):
        topology = self._collectives.topology
        return [self._communication.share(topology.of(r)) for r in range(topology.num_workers)]

    # ---- restoring -------------------------------------------------------------------------------

    def deserialize(self, string_value: bytes) -> None:
        """Restores what `serialize` returned on rank 0. Needs no other worker."""
        with np.load(io.BytesIO(string_value)) as archive:
            self._restored = json.loads(archive["records"].tobytes())
            for number, record in enumerate(self._restored):
                record["arrays"] = {
                    key.partition("/")[2]: archive[key]
                    for key in archive.files
                    if key.startswith(f"{number}/")
                }
        self.is_restored = any(
            key.endswith(f"/{RESIDUAL}") for record in self._restored for key in record["arrays"]
        )
        lost = self.looks_for_none and self.is_restored
        for plan, states in self._lists.items():
            values = self._initial(plan)
            self._fill(plan, values)
            self._begin_anew(states, values)
            pairs = zip(states, values, strict=True)
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
        own = self._description(plan)
        alike = [p for p in self._lists if self._description(p)["tensors"] == own["tensors"]]
        records = [r for r in self._restored if r["tensors"] == own["tensors"]]
        place = alike.index(plan)
        if place >= len(records):
            logging.warning(
                "The checkpoint holds no residuals for the gradients of %s: they start from zero.",
                [tensor.shape for tensor in plan.tensors],
            )
            return False
        self._take(plan, own, records[place], values)
        records[place]["arrays"] = {}  # all workers' residuals: more than this one should hold on to
        self._set_epoch(values)  # this run's: it may have begun after what was saved
        return True

    def _take(self, plan, own, record, values) -> None:
        names = [key.split("/") for key in record["arrays"]]
        alike = all(record[key] == own[key] for key in ("buckets", "places", "nodes", "scheme"))
        if alike and all(name in values[int(bucket)] for bucket, name in names):
            for (bucket, name), rows in zip(names, record["arrays"].values(), strict=True):
                values[int(bucket)][name].assign(rows[self._collectives.topology.rank])
            return
        remembered.count_on(remembered.counts_of(record, is_alike=record["scheme"] == own["scheme"]), values)
        for name in (RESIDUAL, VELOCITY):
            self._cut_anew(name, plan, own, record, values)

    def _cut_anew(self, name, plan, own, record, values) -> None:
        """Gives this run's buckets their parts of what the checkpoint's kept by that name."""
        saved = [record["arrays"].get(f"{b}/{name}") for b in range(len(record["buckets"]))]
        kept = [b for b, rows in enumerate(saved) if rows is not None and rows.any()]
        if not kept:
            return
        positions = {p for b in kept for p in record["buckets"][b]}
        holding = {b: name for b, state in enumerate(values) if name in state}
        if name == RESIDUAL:
            length = self._communication.share(self._collectives.topology).length
            for b, bucket in enumerate(plan.buckets):
                if b not in holding and positions & set(bucket.positions):
                    holding[b] = LEFT
                    values[b][LEFT] = variable(tf.zeros([length(bucket.num_elements)]))
                    values[b][WAITS] = variable(1)
            self._warn_of_what_is_dropped(
                [(plan.buckets[b], State(values[b])) for b in holding if holding[b] == LEFT]
            )
        elif not holding:
            logging.warning("%r has no use for %s's momentum.", self._communication, record["scheme"])
            return
        sizes = tuple(tensor.size for tensor in plan.tensors)
        old = _layout(sizes, [record["buckets"][b] for b in kept], record["places"])
        new = _layout(sizes, [own["buckets"][b] for b in holding], own["places"])
        rank = self._collectives.topology.rank
        shards = resharding.split(new, resharding.merge(old, [saved[b] for b in kept]), rank)
        for (bucket, to), shard in zip(holding.items(), shards, strict=True):
            values[bucket][to].assign(shard)
            if PHASE in values[bucket]:
                values[bucket][PHASE].assign(NO_PHASE)

    def _warn_of_what_is_dropped(self, buckets) -> None:
        for bucket, state in buckets:
            own = scheme_of(bucket, self._communication)
            [*_, (scheme, _)] = own.in_use(state, self._collectives.topology)
            if getattr(scheme, "error_feedback", True) is False:
                logging.warning(
                    "%r: of what the checkpoint's workers had not sent yet, the first step sends the largest "
                    "entries and drops the rest. error_feedback=True loses nothing.",
                    scheme,
                )
                return

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str) -> None:
        """Writes a file, as a whole or not at all; collective, rank 0 writes."""
        content = self.serialize()
        if self._collectives.topology.rank == 0:
            tf.io.gfile.makedirs(os.path.dirname(path))
            with tf.io.gfile.GFile(path + ".partial", "wb") as file:
                file.write(content)
            tf.io.gfile.rename(path + ".partial", path, overwrite=True)

    def load(self, path: str) -> None:
        """Restores the file that `save` wrote, if there is one."""
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                self.deserialize(file.read())


def _layout(sizes, buckets, places) -> resharding.Layout:
    return resharding.Layout(
        sizes, tuple(tuple(b) for b in buckets), tuple((holder, shard) for holder, shard in places)
    )
