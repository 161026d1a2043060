"""Gives this run's buckets what a checkpoint's record of a list of gradients holds.

With the same workers, buckets and scheme each worker takes its own rows. With others residuals and velocities
are put together and cut anew (resharding.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import remembered, resharding
from tf_sparse_strategy.bucketing import BucketPlan
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import scheme_of
from tf_sparse_strategy.communication.switching import NO_PHASE, PHASE
from tf_sparse_strategy.residual import LEFT, RESIDUAL, VELOCITY, WAITS, State
from tf_sparse_strategy.topology import Topology

Variables = Sequence[dict[str, tf.Variable]]  # of each bucket, by name


def take_up(
    record: Mapping[str, Any],
    plan: BucketPlan,
    values: Variables,
    communication: Communication,
    topology: Topology,
) -> dict[tuple[int, str], Any]:
    """Assigns to `values`, the initial ones of the plan's buckets, what they are to go on from.

    Args:
      record: of the list, with its "arrays": (bucket, name) to all workers' rows.
      plan: the list's buckets.
      values: of each bucket; residuals of buckets whose scheme keeps none are added.
      communication: of this run.
      topology: of this worker.

    Returns:
      Those arrays that say how far a scheme has come of which this run's is none: nothing takes them up.
    """
    own = remembered.description(plan, communication, topology)
    others = _counts_of_others(record, values)
    arrays = {key: rows for key, rows in record["arrays"].items() if key not in others}
    alike = all(record[key] == own[key] for key in ("buckets", "places", "nodes", "scheme"))
    if alike and all(name in values[bucket] for bucket, name in arrays):
        for (bucket, name), rows in arrays.items():
            values[bucket][name].assign(rows[topology.rank])
        return others
    remembered.count_on(remembered.counts_of(record, is_alike=record["scheme"] == own["scheme"]), values)
    for name in (RESIDUAL, VELOCITY):
        _cut_anew(name, record, own, plan, values, communication, topology)
    return others


def _counts_of_others(record, values):
    known = {name for state in values for name in state}
    return {
        (bucket, name): rows
        for (bucket, name), rows in record["arrays"].items()
        if remembered.is_progress(name) and name not in known
    }


def _cut_anew(name, record, own, plan, values, communication, topology):
    """Gives this run's buckets their parts of what the checkpoint's kept by that name."""
    saved = [record["arrays"].get((b, name)) for b in range(len(record["buckets"]))]
    kept = [b for b, rows in enumerate(saved) if rows is not None and rows.any()]
    if not kept:
        return
    positions = {p for b in kept for p in record["buckets"][b]}
    holding = {b: name for b, state in enumerate(values) if name in state}
    if name == RESIDUAL:
        length = communication.share(topology).length
        for b, bucket in enumerate(plan.buckets):
            if b not in holding and positions & set(bucket.positions):
                holding[b] = LEFT
                values[b][LEFT] = plain_variable(tf.zeros([length(bucket.num_elements)]))
                values[b][WAITS] = plain_variable(1)
        added = [b for b in holding if holding[b] == LEFT]
        _warn_of_what_is_dropped(added, plan, values, communication, topology)
    elif not holding:
        logging.warning("%r has no use for %s's momentum.", communication, record["scheme"])
        return
    sizes = tuple(tensor.size for tensor in plan.tensors)
    old = resharding.Layout(sizes, [record["buckets"][b] for b in kept], record["places"])
    new = resharding.Layout(sizes, [own["buckets"][b] for b in holding], own["places"])
    shards = resharding.split(new, resharding.merge(old, [saved[b] for b in kept]), topology.rank)
    for (bucket, to), shard in zip(holding.items(), shards, strict=True):
        values[bucket][to].assign(shard)
        if PHASE in values[bucket]:
            values[bucket][PHASE].assign(NO_PHASE)


def _warn_of_what_is_dropped(buckets, plan, values, communication, topology):
    for b in buckets:
        own = scheme_of(plan.buckets[b], communication)
        [*_, (scheme, _)] = own.in_use(State(values[b]), topology)
        if getattr(scheme, "error_feedback", True) is False:
            logging.warning(
                "%r: of what the checkpoint's workers had not sent yet, the first step sends the largest "
                "entries and drops the rest. error_feedback=True loses nothing.",
                scheme,
            )
            return
