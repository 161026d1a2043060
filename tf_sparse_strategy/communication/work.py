"""What a scheme computes beside what it sends: measured, for the cost model."""

import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_strategy import residual
from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.cost_model import LinkModel

_SAMPLE, _ROUNDS = 1 << 23, 5  # elements of the bucket that is summed, and how often
_PER_ELEMENT = LinkModel(0.0, 0.0, 0.0, 0.0, selection=1.0)


def step_of(
    scheme: Communication, n: int, collectives: Collectives
) -> tuple[Callable[[tf.Tensor], tf.Tensor], dict[str, tf.Variable]]:
    """(what sums a bucket [n] over the workers, step by step; the variables that it keeps between steps)."""
    [bucket] = BucketPlan.build([TensorSpec("x", (n,), "float32", 4)], 4 * n).buckets
    variables = scheme.state(bucket, collectives.topology)

    def step(x):
        state = residual.State(variables)
        summed = scheme.reduce(x, state, collectives)
        residual.commit([state])
        return summed

    return step, variables


def selection_seconds(collectives: Collectives, scheme: Communication) -> float:
    """`LinkModel.selection` for a scheme: what the slowest worker computes, per element that its cost counts.

    Whole sums of a bucket are timed that send nothing: adding in the node, selecting, packing, adding up as
    many messages as would arrive (all alike, which makes adding somewhat faster). Collective.

    Args:
      collectives: of this worker.
      scheme: that is asked what it computes; 0 for one that is exact, or sums as `Dense`.
    """
    topology = collectives.topology
    counted = scheme.cost(_SAMPLE, topology, _PER_ELEMENT).seconds
    if not counted:
        return 0.0
    silent = Collectives(topology)
    silent.silent = True
    step, _ = step_of(scheme, _SAMPLE, silent)
    work = tf.function(step)
    x, times = tf.random.stateless_normal([_SAMPLE], [1, 2]), []
    for _ in range(_ROUNDS + 1):
        begin = time.perf_counter()
        work(x)[:1].numpy()
        times.append(time.perf_counter() - begin)
    mine = tf.constant(statistics.median(times[1:]) / counted, tf.float64)
    return float(collectives.all_reduce(mine, op="max", purpose="auto"))
