"""What is saved of a list of gradients and of its scheme's variables, and which lists go on from it."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from tf_sparse_strategy.bucketing import BucketPlan
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.guarded import BEYOND, LEVEL
from tf_sparse_strategy.communication.switching import CHANGES, STEP, own_name
from tf_sparse_strategy.residual import LEFT, WAITS
from tf_sparse_strategy.topology import Topology


def tensors_of(plan: BucketPlan) -> list:
    """[shape, dtype] of each of the plan's gradients, by which a list is known again."""
    return [[list(tensor.shape), tensor.dtype] for tensor in plan.tensors]


def description(plan: BucketPlan, communication: Communication, topology: Topology) -> dict[str, Any]:
    """A checkpoint's record of a list of gradients, without its arrays."""
    shares = [communication.share(topology.of(r)) for r in range(topology.num_workers)]
    return {
        "tensors": tensors_of(plan),
        "buckets": [list(bucket.positions) for bucket in plan.buckets],
        "places": [[share.holder, share.shard] for share in shares],
        "nodes": list(topology.nodes),
        "scheme": repr(communication),
    }


def is_of_this_run(name: str) -> bool:
    """Whether a variable counts for this run's logs or is chosen by its links: neither saved nor restored."""
    return own_name(name) in (BEYOND, CHANGES, CHOICE)


def is_saved(name: str, state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint holds the variable `name` of a bucket's `state`."""
    if name == LEFT:
        return state[WAITS].numpy() > 0  # else it has been summed
    return not is_of_this_run(name) and name != WAITS  # which follows from what is left


def is_progress(name: str) -> bool:
    """Whether a variable says how far training has come, the same on all workers, whatever the buckets."""
    return own_name(name) in (STEP, LEVEL)


def counts_of(record: Mapping[str, Any], is_alike: bool) -> list[tuple[str, int]]:
    """(name, number) of what a checkpoint's record says of progress, by this scheme if it `is_alike`."""
    named = [(name, int(rows[0])) for (_, name), rows in record["arrays"].items() if is_progress(name)]
    return [(name, number) for name, number in named if is_alike or name == STEP]


def count_on(counts: Sequence[tuple[str, int]], values: Sequence[Mapping[str, Any]]) -> None:
    """Lets `values` go on from the largest of the (name, number) of each name, and of their own."""
    for state in values:
        for name in filter(is_progress, state):
            others = (number for known, number in counts if known == name)
            state[name].assign(max([int(state[name]), *others]))


def is_part(tensors: Sequence, others: Sequence) -> bool:
    """Whether one of two lists of [shape, dtype] has all that the other has."""
    one, two = (collections.Counter(map(str, each)) for each in (tensors, others))
    return one <= two or two <= one
