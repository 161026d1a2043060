"""Auto: for each bucket the scheme that is predicted to be fastest on this cluster."""

import dataclasses
import time
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import link_measurement, wire
from tf_sparse_strategy.bucketing import MAX_ELEMENTS, BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import Dense
from tf_sparse_strategy.communication.hitopk import HiTopK
from tf_sparse_strategy.communication.sharded_topk import ShardedTopK
from tf_sparse_strategy.communication.sparse import SparseCommunication
from tf_sparse_strategy.communication.switching import Switching
from tf_sparse_strategy.communication.topk_all_gather import TopKAllGather
from tf_sparse_strategy.communication.torus2d import Torus2D
from tf_sparse_strategy.communication.work import calibrated
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.topology import Topology

CHOICE = "choice"  # the state's name of the number of the chosen scheme
GAIN = 0.8  # sparse gradients cost accuracy: they are to take less than this part of the best exact time
STAY = 0.9  # and a change is to bring as much, or predictions that differ by noise would alternate


@dataclasses.dataclass
class _Measured:
    """What was found out about the cluster; renewed while training."""

    topology: Topology
    models: Sequence[LinkModel]  # one for each scheme: they compute differently
    seconds: float  # the measurement took
    ended: float  # time.monotonic()

    def __post_init__(self):
        # Buckets are planned by these, whatever is found later: residuals belong to a plan.
        self.planned = self.models
        self.told: set[BucketSpec] = set()  # of which the first choice is in the log


@dataclasses.dataclass(frozen=True)
class Auto(Switching):
    """For each bucket the cheapest of two exact and up to three sparse schemes, by the cost model.

    When the strategy is created the workers measure their links (some 15 seconds), and what sums of each
    sparse scheme take beside their messages. Each scheme's `cost` then predicts its time for each bucket. The
    fastest exact scheme is taken unless a sparse one takes less than 0.8 of its time. At the beginning of
    an epoch of `fit` the measurement is repeated if since the last one so much time has passed that it
    takes at most `recheck` of it; a choice is changed where another scheme would take less than 0.9 of its
    time, and a sparse one also where it takes more than 0.89 of the fastest exact one's. All begin with
    what follows from the same measurement, rank 0 decides about changes, and logs each choice with its
    reason. When a bucket turns exact, its first exact step also sums what the residual holds.

    The exact ones are `Dense` and `Torus2D`, the sparse ones `HiTopK`, `ShardedTopK` and, on nodes of several
    workers, `TopKAllGather`, which starts soonest (with one worker per node, or on uneven nodes, it is
    `HiTopK`). The others need not be asked: by the model, on up to 16 even nodes, and on more where starting
    a collective takes longer than its messages, neither `GTopK` nor `OkTopK` is faster than both `HiTopK` and
    `ShardedTopK`, and `DGC` takes as long as `HiTopK`, but needs another optimizer.

    When not to use it: where memory is short and nodes have several workers, for a residual takes the room of
    each worker's then, whatever is chosen, 4 N bytes instead of 4 N/G, and time to write it, which the model
    does not know; or for runs that must be repeatable to the bit, as measurements differ: give it `links`
    with their `selection` then. It predicts buckets one after the other, and does not know what hides behind
    the computation, nor how much accuracy a density costs. Small vectors are always summed exactly: in a
    bucket of their own where a sparse scheme would be chosen for all gradients together, else with others in
    buckets that stay exact.

    Args:
      density: part of the elements that sparse schemes send, 0 < density <= 1; default 0.01.
      wire_dtype, index_coding: of their messages, see `HiTopK`.
      applied: of `ShardedTopK`, entries of a sum that it applies for each that a node sends of it; at least
        1, the default.
      recheck: part of the training time, at most, that measuring again may take, 0 <= recheck < 1; 0 for
        never; default 0.01.
      links: the model to decide by, e.g. of `tss doctor --measure --model FILE`; links are not measured then,
        nor, if its `selection` is not 0, sums. None (default): measured.
      measured: not to be given: `prepare` does.

    Raises:
      ValueError: an argument is out of range.
      RuntimeError: (when the strategy is made) workers cannot reach each other by TCP, to measure the links.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.Auto(density=0.01))

    Source: this library; the criterion of Agarwal et al., "On the Utility of Gradient Compression in
    Distributed Training Systems", MLSys 2022: not slower than a good dense sum.
    """

    density: float = 0.01
    wire_dtype: str | None = None
    index_coding: str = "int32"
    applied: float = 1.0
    recheck: float = 0.01
    links: LinkModel | None = None
    measured: _Measured | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self):
        try:
            scheme = self._sparse()[0]  # which checks the arguments
        except ValueError as error:
            raise ValueError(f"Auto(...): {error}") from None
        object.__setattr__(self, "density", scheme.density)
        object.__setattr__(self, "wire_dtype", scheme.wire_dtype)
        if not 0 <= self.recheck < 1:
            raise ValueError(f"Auto(recheck={self.recheck!r}) must be in [0, 1), e.g. 0.01.")

    def schemes(self, topology: Topology) -> tuple[Communication, ...]:
        found: list[Communication] = [Dense()]
        if topology.is_uniform and 1 < topology.num_nodes:
            found.append(Torus2D())
        share = HiTopK().share(topology)
        if share.holders > 1:
            found += self._sparse()
            if share.shards > 1:
                found.append(TopKAllGather(*self._options))
        return tuple(found)

    @property
    def _options(self) -> tuple[float, bool, str | None, str]:
        return self.density, True, self.wire_dtype, self.index_coding

    def _sparse(self) -> list[SparseCommunication]:
        return [HiTopK(*self._options), ShardedTopK(*self._options, applied=self.applied)]

    @property
    def keeps_residual(self) -> bool:
        return True

    @property
    def bucket_bytes(self) -> int:
        """Those of `Dense`, which start sooner, where it would be chosen for larger ones, too."""
        large = Communication.bucket_bytes
        return large if self.measured is None else self._planned(large // 4).bucket_bytes

    def prepare(self, collectives: Collectives) -> "Auto":
        return dataclasses.replace(self, measured=self._measure(collectives))

    def _measure(self, collectives: Collectives) -> _Measured:
        begin, schemes = time.monotonic(), self.schemes(collectives.topology)
        if len(schemes) == 1:  # there is nothing to choose
            return _Measured(collectives.topology, [], 0.0, begin)
        if self.links is None and self.measured is None and collectives.topology.rank == 0:
            logging.warning("communication=Auto(...) measures the links between the workers: some 15 seconds")
        links = self.links or link_measurement.measure(collectives)
        models = [links] * len(schemes)
        if not links.selection:  # which `tss doctor` does not measure
            models = [calibrated(links, scheme, collectives) for scheme in schemes]
        end = time.monotonic()
        return _Measured(collectives.topology, models, end - begin, end)

    def _counters(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        if self.measured is None:
            raise RuntimeError("Auto has measured nothing yet: call prepare(collectives) on all workers.")
        number, reason = self._choose(bucket, topology)
        if topology.rank == 0 and bucket not in self.measured.told:  # also made to clear those there are
            self.measured.told.add(bucket)
            logging.warning("%s elements of gradients go by %s", bucket.num_elements, reason)
        return {CHOICE: plain_variable(number, dtype=tf.int64)}

    def sets_vectors_apart(self, topology: Topology, n: int) -> bool:
        """Not where an exact scheme is taken for all: one collective more would be for nothing."""
        apart = super().sets_vectors_apart(topology, n)
        if not apart or self.measured is None:
            return apart
        return isinstance(self._planned(n), SparseCommunication)

    def _planned(self, n: int) -> Communication:
        """What would be chosen for `n` elements, or a bucket full, by which buckets are planned."""
        known, n = self.measured, min(n, MAX_ELEMENTS)
        schemes = self.schemes(known.topology)
        return schemes[choose(schemes, n, "float32", known.topology, known.planned)[0]]

    def _choose(self, bucket: BucketSpec, topology: Topology, current=None) -> tuple[int, str]:
        schemes, models = self.schemes(topology), self.measured.models
        # Small vectors that were not set apart keep their bucket exact.
        is_exact = bucket.has_small_vectors
        return choose(schemes, bucket.num_elements, bucket.dtype, topology, models, current, is_exact)

    def _now(self, state: State) -> tf.Tensor:
        return state[CHOICE].read_value()

    def review(self, states: Sequence[tuple[BucketSpec, State]], collectives: Collectives) -> None:
        """Decides again for each bucket; measures first where that is due. On all workers."""
        if not states or len(self.schemes(collectives.topology)) == 1:
            return
        known, topology = self.measured, collectives.topology
        passed = time.monotonic() - known.ended
        due = self.links is None and passed * self.recheck > known.seconds
        if int(collectives.broadcast(tf.constant(int(due)), purpose="auto")):
            try:
                renewed = self._measure(collectives)
            except RuntimeError as error:  # on all workers; what a training survives is no reason to end it
                logging.warning("The links could not be measured again, the last measure counts: %s", error)
                known.ended = time.monotonic()
            else:
                known.models, known.seconds, known.ended = renewed.models, renewed.seconds, renewed.ended
        before = [int(state[CHOICE].numpy()) for _, state in states]
        chosen = [
            self._choose(bucket, topology, current)
            for (bucket, _), current in zip(states, before, strict=True)
        ]
        numbers = tf.constant([number for number, _ in chosen], tf.int64)
        agreed = collectives.broadcast(numbers, purpose="auto").numpy().tolist()
        for (bucket, state), old, new, (_, reason) in zip(states, before, agreed, chosen, strict=True):
            if new != old:
                state[CHOICE].assign(new)
                if topology.rank == 0:
                    logging.warning("%s elements of gradients now go by %s", bucket.num_elements, reason)

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """That of the scheme that `model` chooses."""
        schemes = self.schemes(topology)
        number, _ = choose(schemes, n, "float32", topology, [model] * len(schemes))
        return schemes[number].cost(n, topology, model)


def choose(
    schemes: Sequence[Communication],
    n: int,
    dtype: str,
    topology: Topology,
    models: Sequence[LinkModel],
    current: int | None = None,
    is_exact: bool = False,
) -> tuple[int, str]:
    """Which scheme is to sum a bucket. Pure.

    Args:
      schemes: to choose from; at least one is exact.
      n: elements of the bucket.
      dtype: of the bucket; where sparse schemes would sum it exactly, they are not chosen.
      topology: of any worker.
      models: for each scheme the one that predicts it.
      current: the number of the scheme in use; another must gain enough to take its place.
      is_exact: whether nothing may be dropped, so that sparse schemes are not chosen.

    Returns:
      (the number of the chosen one, the reason in words).

    Example:
      >>> slow = LinkModel(local_alpha=0, local_beta=1e-10, cross_alpha=0, cross_beta=1e-7)
      >>> choose([Dense(), HiTopK(0.01)], 1_000_000, "float32", Topology((0, 1), 0), [slow] * 2)[0]
      1
    """
    if len(schemes) == 1:
        return 0, f"{schemes[0]}: one node has no other way"
    # `cost` is that of float32, in which sparse schemes send; exact ones the bucket's own, or its carrier.
    in_float32 = -(-n * wire.summed_as(tf.as_dtype(dtype)).size // 4)
    seconds = [
        scheme.cost(n if isinstance(scheme, SparseCommunication) else in_float32, topology, model).seconds
        for scheme, model in zip(schemes, models, strict=True)
    ]
    sparse = [i for i, scheme in enumerate(schemes) if not is_exact and scheme.drops(n, dtype, topology)]
    exact = [i for i, scheme in enumerate(schemes) if not isinstance(scheme, SparseCommunication)]
    best = min(exact, key=seconds.__getitem__)
    fastest = min(sparse, key=seconds.__getitem__, default=best)
    chosen = fastest if seconds[fastest] < GAIN * seconds[best] else best
    # Too little is gained by losing accuracy, by more than what predictions differ by.
    leaves_sparse = (
        current in sparse and chosen == best and seconds[current] >= GAIN / STAY * seconds[best]
    )
    if current is not None and not leaves_sparse and seconds[chosen] >= STAY * seconds[current]:
        chosen = current
    other = best if chosen != best else fastest
    if other == chosen:  # no other may be taken
        other = min((i for i in range(len(schemes)) if i != chosen), key=seconds.__getitem__)
    said = (
        f"{schemes[chosen]}: {seconds[chosen] * 1e3:.3g} ms predicted, "
        f"{seconds[other] * 1e3:.3g} ms by {schemes[other]}"
    )
    return chosen, f"{said}; small vectors among them keep them exact" if is_exact else said
