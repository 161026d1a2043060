"""One rank that prints, as JSON lines, what Auto measures and chooses for a bucket of 32 MiB.

With a rate, the link is then slowed down to it, and what Auto finds when it measures again is printed, too.
"""

import dataclasses
import json
import subprocess
import sys
import time

from tests.multiprocess.sparse_runs import bucket_of
from tf_sparse_strategy import collectives
from tf_sparse_strategy.cluster.namespaces import INTERFACE
from tf_sparse_strategy.cluster.rate import DEFAULT_BUFFER, parse_rate, shaper
from tf_sparse_strategy.communication import Auto
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.topology import Topology


def main() -> None:
    collectives.start()
    rank = collectives.find_topology().rank
    workers = collectives.Collectives(Topology((0, 1), rank))
    scheme = Auto(density=0.01, recheck=0.5).prepare(workers)
    bucket = bucket_of(8 << 20)
    state = State(scheme.state(bucket, workers.topology))

    def tell() -> None:
        number = int(state[CHOICE])
        chosen = type(scheme.schemes(workers.topology)[number]).__name__
        links = dataclasses.asdict(scheme.measured.models[number])
        print(json.dumps({"scheme": chosen, "links": links}), flush=True)

    tell()
    for rate in sys.argv[1:]:
        queue = shaper(parse_rate(rate), DEFAULT_BUFFER).split()
        subprocess.run(["tc", "qdisc", "replace", "dev", INTERFACE, "root", *queue], check=True)
        time.sleep(scheme.measured.seconds / scheme.recheck + 1)  # until it is due
        scheme.review([(bucket, state)], workers)
        tell()
    workers.barrier()


if __name__ == "__main__":
    main()
