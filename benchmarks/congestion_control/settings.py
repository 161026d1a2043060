"""Names and sizes that the workers and the tables share; pure."""

from tf_sparse_strategy import cost_model
from tf_sparse_strategy.topology import Topology

BYTES = 5 << 18  # of a worker's tensor: a bucket of 1.25 MiB
IN_A_ROW = 4
EXCHANGE, EXCHANGES = "all-to-all", f"{IN_A_ROW} all-to-alls in a row"
SCATTER, GATHER, REDUCE = "reduce-scatter", "all-gather", "all-reduce"

_ONLY_BYTES = cost_model.LinkModel(local_alpha=0, local_beta=0, cross_alpha=0, cross_beta=1)


def bytes_sent(operation: str, nodes: int, local: int) -> float:
    """What a node's link must carry one way: of a gather each worker has a part, of all others the whole.

    Example:
      >>> bytes_sent(GATHER, 4, 1) == BYTES * 3 / 4
      True
    """
    topology = Topology(tuple(node for node in range(nodes) for _ in range(local)), rank=0)
    n = BYTES // topology.num_workers if operation == GATHER else BYTES
    predict = {
        EXCHANGE: cost_model.all_to_all,
        EXCHANGES: cost_model.all_to_all,
        SCATTER: cost_model.reduce_scatter,
        GATHER: cost_model.all_gather,
        REDUCE: cost_model.all_reduce,
    }[operation]
    return predict(topology, n, _ONLY_BYTES).seconds * (IN_A_ROW if operation == EXCHANGES else 1)
