"""HiTopK: top-k between nodes, exact sums inside."""

import dataclasses

from tf_sparse_strategy import cost_model
from tf_sparse_strategy.communication.messages import MessageCommunication
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import RESIDUAL, Share
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class HiTopK(MessageCommunication):
    """Reduce-scatter in the node, all-gather of the largest entries between nodes, all-gather in the node.

    Worker j of node i holds shard j, n = N/G elements, of its node's sum s_ij, and the residual r_ij:

        a_ij = s_ij + r_ij,   c_ij = the K = density n entries of a_ij of largest magnitude
        u_j  = c_1j + ... + c_Mj,   r_ij <- a_ij - c_ij

    and every worker gets u = (u_1, ..., u_G). The residual belongs to the node, and is not divided by
    anything: sum_i (s_ij + r_ij) = u_j + sum_i r_ij(new). The G exchanges between nodes run at once.
    Per worker, with w words in a message (2K+1 with the defaults; packing.py):

        in the node    4 n (G-1) + 4 min(M w, n+1) (G-1) bytes, in 2 (G-1) messages
        between nodes  4 w (M-1) bytes, in M-1 messages of one collective

    When not to use it: on one node (it is `Dense` then). Where density >= 1/M it sends more than
    `Torus2D`; from three nodes on `ShardedTopK` sends less, in two rounds. On slow processors, or
    fast networks, the selection may take longer than it saves. On uneven nodes every worker counts as
    a node, as in `TopKAllGather`.

    Args:
      density: part of the elements that is sent, 0 < density <= 1; default 0.01.
      error_feedback: whether what is not sent is added to the next gradient. Without it training is biased,
        and usually ends worse; for comparison. Default True.
      wire_dtype: dtype of values between nodes: None (float32, default), "float16" or "bfloat16". What
        rounding takes away stays in the residual.
      index_coding: "int32" (default), or "delta" for about a quarter of the bits, at some computation.
      selector: how the largest entries are found: "exact" (default), or estimated, for comparison:
        "gaussian" or "sampled" (selectors.py).

    Raises:
      ValueError: an argument is not one of these.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> scheme = tss.communication.HiTopK(density=0.001, wire_dtype="bfloat16", index_coding="delta")
      >>> strategy = tss.SparseStrategy(communication=scheme)

    Source: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", MLSys 2021, section 3.2, Algorithm 2.
    """

    def _sum_shard(self, x, state, share, collectives):
        message, kept, _ = self._select(x, state)
        summed, finite = self._exchange(message, x.shape[0], share, collectives)
        return summed, {} if kept is None else {RESIDUAL: kept}, finite

    def _exchange(self, message, n: int, share: Share, collectives):
        """(the sum of all shards, whether it is finite) from one message of each holder's n elements."""
        messages = collectives.all_gather(message, share.group, purpose="gradients")
        return self._spread(messages, self.packing(n), share.holders, share, collectives)

    def _cost_between(self, n: int, share: Share, topology: Topology, model: LinkModel) -> Cost:
        gathered = cost_model.all_gather(topology, 4 * self.packing(n).words, model, share.group)
        return cost_model.selection(n, model) + gathered

    def _message_words(self, n: int, share: Share) -> int:
        return share.holders * self.packing(n).words
