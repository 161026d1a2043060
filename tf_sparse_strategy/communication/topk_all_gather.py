"""TopKAllGather: every worker sends its largest entries to all others."""

import dataclasses

from tf_sparse_strategy.communication.hitopk import HiTopK
from tf_sparse_strategy.residual import Share
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class TopKAllGather(HiTopK):
    """`HiTopK` in which each worker is a node of its own; known as TopkA or NaiveAG.

    Worker p with gradient g_p and residual r_p [N], K = density N:

        c_p = the K entries of g_p + r_p of largest magnitude,   r_p <- g_p + r_p - c_p
        u = c_1 + ... + c_P

    One collective, an all-gather of 4 w (P-1) bytes in P-1 messages per worker along the ring, w words in a
    message (2K+1 with the defaults): of one worker of each node to another node where ranks follow the
    nodes, of the others inside. The residuals take G times the memory of `HiTopK`'s.

    When not to use it: where bytes decide, as several workers share a slow link, or there are many of
    them: a link carries P messages of density N entries, that of `HiTopK` M. It has the least latency, and
    is ahead for small vectors, low densities and on few nodes with fast links.

    Args:
      density, error_feedback, wire_dtype, index_coding, selector: see `HiTopK`.

    Raises:
      ValueError: an argument is not one that `HiTopK` takes.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.TopKAllGather(density=0.01))

    Source: Renggli et al., "SparCML: High-performance sparse communication for machine learning",
    SC 2019; the baseline NaiveAG of Shi et al., MLSys 2021, section 3.2, equation 3.
    """

    def share(self, topology: Topology) -> Share:
        return Share.per_worker(topology)
