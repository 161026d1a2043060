"""What a worker of a benchmark is told, and how its part ends."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports Horovod
    from tf_sparse_strategy.collectives import Collectives


def arguments(description: str, **options: Any) -> argparse.Namespace:
    """OUTPUT, where the worker's part is handed in, and options that must all be given.

    Args:
      description: for --help.
      **options: of each its type, or what there is to choose from.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output")
    for name, kind in options.items():
        given = {"type": kind} if isinstance(kind, type) else {"choices": kind}
        parser.add_argument(f"--{name}", required=True, **given)
    return parser.parse_args()


def hand_in(found: Any, output: str, comm: "Collectives") -> None:
    """Rank 0 writes `found` for `cluster.run`; all workers leave together. Collective."""
    write(found, output, comm.topology.rank)
    comm.barrier()


def write(found: Any, output: str, rank: int) -> None:
    """Rank 0 writes `found`; for workers that leave by another way."""
    if rank == 0:
        with open(output, "w") as file:
            json.dump(found, file)
