"""The sums of squares behind layer-wise rates: on one worker, or divided over all."""

import logging
from collections.abc import Callable, Sequence

import tensorflow as tf

import custom_ops
from custom_ops.library import fits_cpu_alone
from lars_pto import decision, parallel, partition

MODES = ("auto", "on", "off")
_LOGGER = logging.getLogger(__name__)

Measure = Callable[
    [Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[float]], Sequence[tf.Tensor] | tf.Tensor
]


def sums_of_squares(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """Σ w² and Σ (x + c w)² of each layer, computed by this worker alone.

    On CPUs by one fused operation that reads each tensor once; on GPUs by TensorFlow's own, one per
    tensor (float32 sums in a tree, relative error about 2e-7).

    Args:
      weights: w, L tensors, all float32 or float64.
      directions: x, L tensors of the shapes of `weights`.
      decays: c, L numbers.

    Returns:
      float64 [L, 2].
    """
    if not weights:
        return tf.zeros([0, 2], tf.float64)
    by_dtype: dict[tf.DType, list[int]] = {}
    for i, w in enumerate(weights):
        by_dtype.setdefault(w.dtype, []).append(i)
    compute = custom_ops.segmented_norms if fits_cpu_alone() else plain_sums
    parts = [
        compute([weights[i] for i in same], [directions[i] for i in same], [decays[i] for i in same])
        for same in by_dtype.values()
    ]
    if len(parts) == 1:
        return parts[0]
    order = [i for same in by_dtype.values() for i in same]
    return tf.gather(tf.concat(parts, axis=0), sorted(range(len(order)), key=order.__getitem__))


def sums_layer_by_layer(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> list[tf.Tensor]:
    """The rows of `sums_of_squares`, by an operation for each layer.

    A layer's update then waits for no other layer, and may find it in the processor's cache.
    """
    return [
        sums_of_squares([w], [x], [c])[0] for w, x, c in zip(weights, directions, decays, strict=True)
    ]


def plain_sums(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """`sums_of_squares` by TensorFlow's own operations."""
    rows = [
        [2 * tf.nn.l2_loss(w), 2 * tf.nn.l2_loss(x + c * w if c else x)]
        for w, x, c in zip(weights, directions, decays, strict=True)
    ]
    return tf.stack([tf.cast(tf.stack(row), tf.float64) for row in rows])


def divided_sums(
    weights: Sequence[tf.Tensor], directions: Sequence[tf.Tensor], decays: Sequence[float]
) -> tf.Tensor:
    """`sums_of_squares` with 1/P of the elements on each of P workers and one all-gather.

    The same bits on all workers. Layers that are not cut have the bits of `sums_of_squares`; those
    that are differ in the order in which a few float64 sums are added.

    Raises:
      ValueError: a shape is not static.
    """
    for i, w in enumerate(weights):
        if not w.shape.is_fully_defined():
            raise ValueError(
                f"the norms are divided over the workers, but weights[{i}] has shape {w.shape}: pass "
                "parallel='off', or give the variable a static shape."
            )
    workers, _ = parallel.replica()
    sizes = [w.shape.num_elements() for w in weights]
    costs = [size * w.dtype.size for size, w in zip(sizes, weights, strict=True)]
    division = partition.split_tensors(sizes, costs, workers, parallel.UNIT)

    def compute(share):
        return sums_of_squares(
            [parallel.piece_of(weights[p.tensor], p) for p in share],
            [parallel.piece_of(directions[p.tensor], p) for p in share],
            [decays[p.tensor] for p in share],
        )

    rows = parallel.gather_shares(compute, division, [len(s) for s in division], [2], tf.float64)
    return tf.math.segment_sum(rows, [p.tensor for share in division for p in share])


class Norms:
    """`sums_of_squares`, divided over the workers or not, as `mode` says.

    "auto" measures both once, when it first sees the layers, with buffers of their shapes (for a
    moment as much memory as weights and gradients take). Each worker learns all workers' times, so
    all decide alike. It stays "off" where it cannot measure: several replicas in one process share
    their cores and are traced one by one, and MultiWorkerMirroredStrategy refuses collectives beside a trace.

    Attributes:
      mode: "auto", "on" or "off".
      decision: what was decided and why; None before the first step.
    """

    def __init__(self, mode: str):
        if mode not in MODES:
            raise ValueError(f"parallel is {mode!r}; allowed are {', '.join(MODES)}.")
        self.mode = mode
        self.decision: decision.Decision | None = None

    def __call__(
        self,
        weights: Sequence[tf.Tensor],
        directions: Sequence[tf.Tensor],
        decays: Sequence[float],
    ) -> Sequence[tf.Tensor] | tf.Tensor:
        """The rows of `sums_of_squares`."""
        if not weights:
            return sums_of_squares([], [], [])
        if self.decision is None:
            self.decision = self._decide(weights, decays)
            _LOGGER.info(
                "layer norms are %s: %s",
                "divided over the workers" if self.decision.divide else "computed by every worker",
                self.decision.reason,
            )
        if self.decision.divide:
            return divided_sums(weights, directions, decays)
        return sums_layer_by_layer(weights, directions, decays)

    def _decide(self, weights, decays) -> decision.Decision:
        if self.mode == "off":
            return decision.Decision(False, "parallel='off'")
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync == 1:
            return decision.Decision(False, "there is one worker")
        if self.mode == "on":
            return decision.Decision(True, "parallel='on'")
        if len(strategy.extended.worker_devices) > 1:
            return decision.Decision(False, "several replicas in one process are not measured")
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):  # forbids it while it traces
            return decision.Decision(False, "not measured under MultiWorkerMirroredStrategy")
        return _measured(weights, decays)


def _measured(weights, decays) -> decision.Decision:
    """Runs both ways outside of the graph that is being traced, on buffers of the same shapes."""
    context = tf.distribute.get_replica_context()
    _, rank = parallel.replica()
    # A context of its own: entering one twice would lose what it restores when left.
    context = type(context)(context.strategy, replica_id_in_sync_group=rank)
    with tf.init_scope(), context:
        buffers = [tf.zeros(w.shape, w.dtype) for w in weights]
        others = [tf.zeros(w.shape, w.dtype) for w in weights]
        runs = []
        for method in (sums_layer_by_layer, divided_sums):
            # Without arguments and with one result: to hand over hundreds takes longer than the norms.
            run = tf.function(
                lambda method=method: tf.reduce_sum(tf.convert_to_tensor(method(buffers, others, decays)))
            )
            runs.append(lambda run=run: run().numpy())  # an accelerator returns before it is done
        barrier = tf.function(lambda: context.all_gather(tf.zeros([1]), axis=0))
        seconds = decision.median_seconds(*runs, ready=lambda: barrier().numpy())
        times = context.all_gather(tf.constant([seconds], tf.float64), axis=0).numpy()
    return decision.decide(times[:, 0].tolist(), times[:, 1].tolist())
