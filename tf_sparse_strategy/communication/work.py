"""What a scheme computes beside what it sends: measured, for the cost model."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_strategy import residual
from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.residual import RESIDUAL, VELOCITY

# Elements of the buckets that are summed, and how often, after some rounds that do not count.
_SMALL, _SMALL_ROUNDS = 1 << 14, 21
_LARGE, _LARGE_ROUNDS = 1 << 23, 9
_WARM_UP = 3
_LONG_ENOUGH = 0.5  # seconds of messages in one sum; the large bucket is smaller where they take longer
_PER_ELEMENT = LinkModel(0.0, 0.0, 0.0, 0.0, selection=1.0)
_PER_SELECTION = LinkModel(0.0, 0.0, 0.0, 0.0, selection_start=1.0)


def step_of(
    scheme: Communication, n: int, collectives: Collectives
) -> tuple[Callable[[tf.Tensor], tf.Tensor], dict[str, tf.Variable]]:
    """(what sums a bucket [n] over the workers, step by step; the variables that it keeps between steps)."""
    [bucket] = BucketPlan.build([TensorSpec("x", (n,), "float32", 4)], 4 * n).buckets
    variables = scheme.state(bucket, collectives.topology)

    @tf.autograph.experimental.do_not_convert
    def step(x):
        state = residual.State(variables)
        summed = scheme.reduce(x, state, collectives)
        residual.commit([state])
        return summed

    return step, variables


def empty(variables: dict[str, tf.Variable]) -> None:
    """Drops what waits in a scheme's state; thresholds stay. The next sum is then of its gradient alone.

    A residual that begins to grow is not that of a training: it soon exceeds the thresholds of `OkTopK`,
    which are renewed once in many steps.
    """
    for name in (RESIDUAL, VELOCITY):
        if name in variables:
            variables[name].assign(tf.zeros_like(variables[name]))


def calibrated(links: LinkModel, scheme: Communication, collectives: Collectives) -> LinkModel:
    """`links` with `selection` and `selection_start` of a scheme: what sums take beside their messages.

    Buckets of two sizes are summed. What the slowest worker takes longer than `links` predicts is what the
    scheme computes: adding in the node, selecting, packing, adding up what arrives, waiting for workers
    that are not done. A line through both sizes, per selection that the scheme's cost counts; it begins below
    0 where collectives start sooner than `links` says, and does not fall. Some seconds. Collective.

    Args:
      links: as measured.
      scheme: of which sums are timed, unless it computes next to nothing, as exact ones of 32 bits.
      collectives: of this worker.
    """
    topology = collectives.topology
    alone = dataclasses.replace(links, selection=0.0, selection_start=0.0)
    selections = scheme.cost(_SMALL, topology, _PER_SELECTION).seconds
    if not selections:
        return alone

    def predicted(n):
        return scheme.cost(n, topology, alone).seconds

    large = _LARGE
    while predicted(large) > _LONG_ENOUGH and large > 2 * _SMALL:
        large //= 2
    elements, beside = [], []
    for n, rounds in ((_SMALL, _SMALL_ROUNDS), (large, _LARGE_ROUNDS)):
        elements.append(scheme.cost(n, topology, _PER_ELEMENT).seconds / selections)
        beside.append((_seconds(scheme, n, rounds, collectives) - predicted(n)) / selections)
    slope = max(0.0, (beside[1] - beside[0]) / (elements[1] - elements[0]))
    return dataclasses.replace(links, selection=slope, selection_start=beside[0] - slope * elements[0])


def _seconds(scheme: Communication, n: int, rounds: int, collectives: Collectives) -> float:
    """Of a sum of `n` elements, the slowest worker's, in the median of some rounds; the same everywhere."""
    step, variables = step_of(scheme, n, collectives)
    work = tf.function(step)
    x, times = tf.random.stateless_normal([n], [1, collectives.topology.rank]), []
    for _ in range(_WARM_UP + rounds):
        collectives.barrier()
        begin = time.perf_counter()
        work(x)[:1].numpy()
        times.append(time.perf_counter() - begin)
        empty(variables)
    slowest = collectives.all_reduce(tf.constant(times[_WARM_UP:], tf.float64), op="max", purpose="auto")
    return statistics.median(slowest.numpy().tolist())
