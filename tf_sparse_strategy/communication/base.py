"""The seam every way of summing gradients fits into."""

import abc
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import Share, State
from tf_sparse_strategy.topology import Topology


class Communication(abc.ABC):
    """Sums a bucket of gradients over all workers.

    Implementations are frozen dataclasses, told apart by their configuration: workers, and checkpoints,
    compare their `repr`. What they remember between steps is in the variables of `state`.

    Example:
      >>> import dataclasses
      >>> from tf_sparse_strategy import cost_model
      >>> @dataclasses.dataclass(frozen=True)
      ... class AllReduce(Communication):
      ...     def reduce(self, bucket, state, collectives):
      ...         return collectives.all_reduce(bucket, purpose="gradients")
      ...     def cost(self, n, topology, model):
      ...         return cost_model.all_reduce(topology, 4 * n, model)
      >>> AllReduce()     # SparseStrategy(communication=AllReduce())
      AllReduce()
    """

    # Size limit of a bucket where the user sets none. A bucket costs a few dependent collectives, and
    # travels while the gradients of earlier layers are computed.
    bucket_bytes = 32 << 20
    # That sums come with, which `tf.IndexedSlices` would not get.
    momentum: float | None = None

    def validate(self, topology: Topology) -> None:
        """Raises ValueError, with the remedy, where the scheme cannot run on `topology`."""
        del topology

    def check_optimizer(self, optimizer) -> None:
        """Raises ValueError, with the remedy, where `optimizer` must not get this scheme's sums.

        Args:
          optimizer: of Keras 3, or None for one of tf_keras, which does not say which it is.
        """
        del optimizer

    def prepare(self, collectives: Collectives) -> "Communication":
        """The scheme with what it must know of this cluster. Collective; once, after `validate`."""
        del collectives
        return self

    def review(self, states: Sequence[tuple[BucketSpec, State]], collectives: Collectives) -> None:
        """Between epochs, on all workers: time to think again. Collective; does nothing by default."""
        del states, collectives

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        """Makes this worker's memory for `bucket`; nothing by default."""
        del bucket, topology
        return {}

    def drops(self, n: int, dtype: str, topology: Topology) -> bool:
        """Whether entries are left out of a bucket of `n`; of a scheme that chooses from others ask those."""
        del n, dtype, topology
        return False

    def sets_vectors_apart(self, topology: Topology, n: int) -> bool:
        """Whether small vectors are to have buckets of their own, summed by `Dense`: this drops entries.

        Args:
          topology: of any worker.
          n: elements of all gradients.
        """
        del topology, n
        return False

    @property
    def keeps_residual(self) -> bool:
        """Whether what is not sent of a bucket stays in its state."""
        return False

    def in_use(self, state: State, topology: Topology) -> list[tuple["Communication", State]]:
        """The scheme that summed the last step, with its variables, after those that chose it. Eager."""
        del topology
        return [(self, state)]

    def share(self, topology: Topology) -> Share:
        """Returns which part of which residual this worker keeps, where the scheme keeps any."""
        return Share.per_worker(topology)

    @abc.abstractmethod
    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        """Returns the sum over all workers of `bucket` [N], the same bits on every worker.

        Args:
          bucket: [N], this worker's gradients.
          state: the variables made by `state`; their new values are staged, not assigned.
          collectives: of this worker.
        """

    @abc.abstractmethod
    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """Predicts one `reduce` of `n` float32 elements. Pure.

        The sum of the costs of its collectives (cost_model.py): they wait for one another.
        """
