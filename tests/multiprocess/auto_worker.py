"""One rank that prints, as one JSON line, what Auto measures and chooses for a bucket of 32 MiB."""

import dataclasses
import json

from tests.multiprocess.sparse_runs import bucket_of
from tf_sparse_strategy import collectives
from tf_sparse_strategy.communication import Auto
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.topology import Topology


def main() -> None:
    collectives.start()
    rank = collectives.find_topology().rank
    workers = collectives.Collectives(Topology((0, 1), rank))
    scheme = Auto(density=0.01).prepare(workers)
    number = int(scheme.state(bucket_of(8 << 20), workers.topology)[CHOICE])
    chosen = type(scheme.schemes(workers.topology)[number]).__name__
    links = dataclasses.asdict(scheme.measured.models[number])
    print(json.dumps({"scheme": chosen, "links": links}), flush=True)
    workers.barrier()


if __name__ == "__main__":
    main()
