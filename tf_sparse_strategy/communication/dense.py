"""Dense: the exact sum by one ring all-reduce over all workers."""

import dataclasses

import tensorflow as tf

from tf_sparse_strategy import cost_model
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class Dense(Communication):
    """Ring all-reduce of every element.

    Each worker sends 2(P-1) messages, 2N(P-1)/P elements in all, to its neighbour:

        T = phase + 2(P-1) (alpha + N/P beta)

    of the slowest link in the ring, beta per element of 4 bytes; where ranks follow the nodes, one worker of
    each node sends to another node. When not to use it: see `Torus2D`; or where the model is so large that
    even the best exact sum does not fit behind the computation.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.Dense())

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
    """

    # Horovod fuses those that are ready together, so that small ones start early and cost little.
    bucket_bytes = 1 << 20

    def reduce(self, bucket, state, collectives) -> tf.Tensor:
        return collectives.all_reduce(bucket, purpose="gradients")

    def cost(self, n: int, topology: Topology, model: LinkModel, element_bytes: int = 4) -> Cost:
        return cost_model.all_reduce(topology, element_bytes * n, model)


def scheme_of(bucket: BucketSpec, scheme: Communication) -> Communication:
    """What sums a bucket: `scheme`, unless nothing is to be dropped."""
    return Dense() if bucket.is_exact else scheme
