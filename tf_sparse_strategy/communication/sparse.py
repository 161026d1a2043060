"""What the schemes that send a part of the gradient have in common.

A node first sums its workers' gradients, each worker a shard of the sum (or every worker is a node of its
own: `Share`). Between nodes K = density n entries of a shard of n travel instead of all, chosen by
magnitude; the rest stays in the residual. Then the node's workers give each other what they received.
Everything is float32 inside, whatever the bucket's dtype.

Nothing is dropped where nothing is gained, and the sum is then that of `Dense`: with one node (one worker
for the flat schemes), with density 1 (but where coded messages are shorter), for float64, integers and
complex numbers, and for empty buckets.
Nor is anything of small vectors, as most biases and normalizations are, unless momentum is applied on the
way: they hardly count beside a model's matrices, and models learn worse where they come late.
"""

import abc
import dataclasses
import numbers

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import cost_model, residual
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import Dense
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import RESIDUAL, Share, State
from tf_sparse_strategy.topology import Group, Topology

_SPARSE_DTYPES = ("float16", "bfloat16", "float32")


@dataclasses.dataclass(frozen=True)
class SparseCommunication(Communication):
    """Sends the largest entries; arguments as `HiTopK` describes them."""

    density: float = 0.01
    error_feedback: bool = True

    def __post_init__(self):
        name = type(self).__name__
        if not (isinstance(self.density, numbers.Real) and 0 < self.density <= 1):
            raise ValueError(
                f"{name}(density={self.density!r}) must be in (0, 1], e.g. 0.01 to send one in a hundred."
            )
        # NumPy's would count in as few bits as it has, and read otherwise in checkpoints.
        object.__setattr__(self, "density", float(self.density))

    def validate(self, topology: Topology) -> None:
        super().validate(topology)
        if topology.rank == 0 and topology.num_workers > 1 and self.share(topology).holders == 1:
            logging.warning(
                "communication=%r: on one node everything is sent, as by 'dense'. To try it on one machine, "
                "start as on two: horovodrun -np 2 -H localhost:1,127.0.0.1:1",
                self,
            )

    @property
    def keeps_residual(self) -> bool:
        return self.error_feedback and not self._is_dense

    def sets_vectors_apart(self, topology: Topology, n: int) -> bool:
        return self.drops(n, "float32", topology) and self.momentum is None

    def drops(self, n: int, dtype: str, topology: Topology) -> bool:
        several = n > 0 and self.share(topology).holders > 1
        return several and dtype in _SPARSE_DTYPES and not self._is_dense

    def share(self, topology: Topology) -> Share:
        return Share.per_node(topology)

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        if not (self.keeps_residual and self.drops(bucket.num_elements, bucket.dtype, topology)):
            return {}
        length = self.share(topology).length(bucket.num_elements)
        return {RESIDUAL: plain_variable(tf.zeros([length]))}

    def reduce(self, bucket: tf.Tensor, state: State, collectives: Collectives) -> tf.Tensor:
        topology, n = collectives.topology, bucket.shape[0]
        if not self.drops(n, bucket.dtype.name, topology):
            return Dense().reduce(bucket, state, collectives)
        share = self.share(topology)
        x = tf.cast(bucket, tf.float32)
        if share.shards > 1:
            x = collectives.reduce_scatter(x, Group.LOCAL, purpose="gradients")
        summed, new, finite = self._sum_shard(x, state, share, collectives)
        values = tf.cast(summed, bucket.dtype)
        if RESIDUAL in new and bucket.dtype != tf.float32:
            values, left = residual.hand_out(summed, bucket.dtype, share)
            new[RESIDUAL] += left
        if new:
            state.stage(finite, **new)
        return values[:n]

    @abc.abstractmethod
    def _sum_shard(
        self, x: tf.Tensor, state: State, share: Share, collectives: Collectives
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
        """Sums what holders select of their shards.

        Args:
          x: float32 [n], this worker's shard of its holder's gradient.
          state: of the bucket; RESIDUAL [n] is in it with error feedback.
          share: what this worker keeps.
          collectives: of this worker.

        Returns:
          (the sum of all shards [>= N]; new values of the state; whether all contributions and all sums are
          finite: finite ones may add up to Inf, and what was sent of them would be lost).
        """

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        if not self.drops(n, "float32", topology):
            return Dense().cost(n, topology, model)
        share = self.share(topology)
        length = share.length(n)
        between = self._cost_between(length, share, topology, model)
        if share.shards == 1:
            return between
        return (
            cost_model.reduce_scatter(topology, 4 * length * share.shards, model, Group.LOCAL)
            + between
            + cost_model.all_gather(topology, self._result_bytes(length, share), model, Group.LOCAL)
        )

    @abc.abstractmethod
    def _cost_between(self, n: int, share: Share, topology: Topology, model: LinkModel) -> Cost:
        """Predicts the exchange between holders of a shard of `n` elements."""

    @abc.abstractmethod
    def _result_bytes(self, n: int, share: Share) -> int:
        """Of the sum of a shard of `n` elements, which a node's workers give each other."""

    def count(self, n: int) -> int:
        """K = density n of `n` elements, at least one."""
        return min(n, max(1, round(self.density * n)))

    @property
    def _is_dense(self) -> bool:
        """Whether its messages would only say at more length what `Dense` says."""
        return self.density == 1
