"""Torus2D: the exact sum in three phases that keep most bytes inside the nodes."""

import dataclasses

import tensorflow as tf

from tf_sparse_strategy import traffic
from tf_sparse_strategy.communication.base import Communication, Cost, LinkModel
from tf_sparse_strategy.topology import Group, Topology


@dataclasses.dataclass(frozen=True)
class Torus2D(Communication):
    """Reduce-scatter in the node, all-reduce between nodes, all-gather in the node.

    Worker j of each node owns shard j of N/G elements; the G streams between nodes run at once.
    Per worker: 2N(G-1)/G elements inside the node and 2(N/G)(M-1)/M between nodes:

        T = 2(G-1)(alpha_l + N/G beta_l) + 2(M-1)(alpha_c + N/(GM) beta_c)

    When not to use it: with one worker per node it is an all-reduce with one more phase, and on one
    node three phases do the work of one; `Dense` is then never worse.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.Torus2D())

    Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash",
    2018, section 2.2; the baseline of Shi et al., MLSys 2021, section 5.3.
    """

    def validate(self, topology: Topology) -> None:
        if not topology.is_uniform:
            raise ValueError(
                "communication='torus2d' needs the same number of workers on every node; got "
                f"{topology.node_sizes}. Start equal numbers (horovodrun -H host1:4,host2:4) or "
                "use communication='dense'."
            )

    def reduce(self, bucket, state, collectives) -> tf.Tensor:
        shard = collectives.reduce_scatter(bucket, Group.LOCAL, purpose="gradients")
        shard = collectives.all_reduce(shard, Group.CROSS, purpose="gradients")
        whole = collectives.all_gather(shard, Group.LOCAL, purpose="gradients")
        return whole[: tf.size(bucket)]

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        g, m = topology.local_workers, topology.num_nodes
        shard = -(-n // g)
        seconds = 2 * (g - 1) * (model.local_alpha + 4 * shard * model.local_beta)
        seconds += 2 * (m - 1) * (model.cross_alpha + 4 * shard / m * model.cross_beta)
        inside = 2 * traffic.all_to_all(topology, Group.LOCAL, 4 * shard * g).local
        between = 2 * traffic.all_to_all(topology, Group.CROSS, 4 * -(-shard // m) * m).cross
        return Cost(seconds=seconds, bytes=traffic.Bytes(local=inside, cross=between))
