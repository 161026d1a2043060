"""The seam every way of summing gradients fits into."""

import abc
import dataclasses

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.topology import Topology
from tf_sparse_strategy.traffic import Bytes


@dataclasses.dataclass(frozen=True)
class LinkModel:
    """The alpha-beta model of the two link classes: a message of n bytes takes alpha + n beta.

    Args:
      local_alpha, cross_alpha: latency of one message inside a node and between nodes, seconds.
      local_beta, cross_beta: seconds per byte of one worker's link.
    """

    local_alpha: float
    local_beta: float
    cross_alpha: float
    cross_beta: float


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one `reduce` takes: seconds, and bytes sent per worker by link class."""

    seconds: float
    bytes: Bytes


class Communication(abc.ABC):
    """Sums a bucket of gradients over all workers.

    Implementations are stateless and hashable by configuration; what they remember between steps
    is in the variables of `state`.
    """

    def validate(self, topology: Topology) -> None:
        """Raises ValueError, with the remedy, where the scheme cannot run on `topology`."""
        del topology

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        """Makes this worker's memory for `bucket`; nothing by default."""
        del bucket, topology
        return {}

    @abc.abstractmethod
    def reduce(
        self, bucket: tf.Tensor, state: dict[str, tf.Variable], collectives: Collectives
    ) -> tf.Tensor:
        """Returns the sum over all workers of `bucket` [N], the same bits on every worker."""

    @abc.abstractmethod
    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """Predicts one `reduce` of `n` float32 elements. Pure."""
