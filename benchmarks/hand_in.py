"""The end of a worker's part in a benchmark."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports Horovod
    from tf_sparse_strategy.collectives import Collectives


def hand_in(found: Any, output: str, comm: "Collectives") -> None:
    """Rank 0 writes `found` for `cluster.run`; all workers leave together. Collective."""
    write(found, output, comm.topology.rank)
    comm.barrier()


def write(found: Any, output: str, rank: int) -> None:
    """Rank 0 writes `found`; for workers that leave by another way."""
    if rank == 0:
        with open(output, "w") as file:
            json.dump(found, file)
