"""Residuals that are restored where workers share nodes in another way: their sum is kept."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.sparse_runs import apart, moved, placed, sent_in_all, step
from tests.thorough import thorough, thorough_if
from tf_sparse_strategy.communication import (
    DGC,
    GTopK,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.residual import VELOCITY, flush

BY_WORKERS = Piecewise([(0, HiTopK(0.05)), (2, TopKAllGather(0.3))], unit="step")
OTHERS = [
    (TopKAllGather(0.3), 64, "apart"),
    pytest.param(HiTopK(0.3), 1 << 20, "apart", marks=thorough),
    (HiTopK(0.3), 1, "pairs"),
    pytest.param(ShardedTopK(0.3), 40, "apart", marks=thorough),
    (BY_WORKERS, 64, "pairs"),
    (OkTopK(0.3, threshold_period=1), 64, "pairs"),
]
OFTEN = (HiTopK(0.05), "pairs")
FIRST = [OFTEN, (HiTopK(0.05), "apart"), (BY_WORKERS, "pairs"), (ShardedTopK(0.05), "pairs")]
FIRST += [(GTopK(0.05), "pairs"), (OkTopK(0.3, threshold_period=1), "apart")]


@pytest.mark.parametrize("scheme, bucket_bytes, where", OTHERS, ids=str)
@pytest.mark.parametrize("first", thorough_if(lambda first: first != OFTEN, FIRST), ids=str)
def test_another_run_keeps_the_sum(comm, topology, variables, first, scheme, bucket_bytes, where):
    """Other nodes, workers per node, buckets or scheme: everything still arrives."""
    p = topology.num_workers
    nodes = {"apart": list(range(p)), "pairs": [rank % 2 for rank in range(p)]}
    begun, place = first
    old = GradientReducer(begun, placed(topology, nodes[place]), bucket_bytes=100)
    for seed in range(3):
        step(old, variables, topology, seed)
    blob = moved(comm, old.memory.serialize())
    rest = sent_in_all(old, variables)
    new = GradientReducer(scheme, placed(topology, nodes[where]), bucket_bytes)
    new.memory.deserialize(blob)
    np.testing.assert_array_equal(sent_in_all(new, variables), rest)
    assert rest.any() == (p > 1)


@pytest.mark.parametrize("where", ["apart", "pairs"])
def test_velocities_of_another_run(topology, partners, variables, where):
    """Other workers per node, or only another density: their sum is kept as the residuals' is."""

    def velocity(reducer, here):
        [(bucket, state)] = reducer.memory.buckets
        nothing = tf.zeros([bucket.num_elements])
        return here.all_reduce(flush(nothing, state[VELOCITY], DGC().share(here.topology))).numpy()

    p, room = topology.num_workers, 1 << 20
    here = apart(topology)
    old = GradientReducer(DGC(0.05, momentum=0.5), here, room)
    step(old, variables, topology, 0)
    step(old, variables, topology, 1)
    there = placed(topology, {"apart": range(p), "pairs": [rank % 2 for rank in range(p)]}[where])
    new = GradientReducer(DGC(0.1, momentum=0.5), there, room)
    new.memory.deserialize(moved(here, old.memory.serialize()))
    new.memory.of(next(iter(old.memory._lists)), variables)
    np.testing.assert_array_equal(velocity(new, there), velocity(old, here))
    assert velocity(old, here).any()
