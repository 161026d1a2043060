"""Dense: the exact sum by one ring all-reduce over all workers."""

import dataclasses

import tensorflow as tf

from tf_sparse_strategy import traffic
from tf_sparse_strategy.communication.base import Communication, Cost, LinkModel
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class Dense(Communication):
    """Ring all-reduce of every element.

    Each worker sends 2(P-1) messages, 2N(P-1)/P elements in all, to its neighbour:

        T = 2(P-1) (alpha + N/P beta)

    of the slowest link in the ring. When not to use it: between nodes on slow Ethernet with more
    than one worker per node, where `Torus2D` sends G times less per link, or where the model is so
    large that even that does not fit behind the computation.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.Dense())

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
    """

    def reduce(self, bucket, state, collectives) -> tf.Tensor:
        return collectives.all_reduce(bucket, purpose="gradients")

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        p = topology.num_workers
        one_node = topology.num_nodes == 1
        alpha = model.local_alpha if one_node else model.cross_alpha
        beta = model.local_beta if one_node else model.cross_beta
        sent = traffic.ring_all_reduce(topology, 4 * n)
        return Cost(seconds=2 * (p - 1) * (alpha + 4 * n / p * beta), bytes=sent)
