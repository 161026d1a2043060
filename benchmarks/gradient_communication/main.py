"""How long does each way of summing gradients take between nodes, and what does it send?

make bench-gradient_communication                         measures, publishes; an hour; root, Linux
python -m benchmarks.gradient_communication.main --quick  a million elements, two nodes; prints only
"""

import json

from benchmarks import cluster, report
from benchmarks.gradient_communication import tables
from tf_sparse_strategy.cluster import Netlab

DENSITIES = [0.001, 0.01, 0.05]
# By name: (nodes, workers per node, rate, [[elements, densities, rounds], ...])
CLUSTERS = {
    "4 nodes of 2 workers, 200 Mbit/s": (
        4,
        2,
        "200mbit",
        # The largest first, lest they find no room at the end: eight workers hold 20 GB, at 5 % more than 24.
        [
            [100_000_000, [0.001, 0.01], 3],
            [25_000_000, DENSITIES, 5],
            [5_000_000, DENSITIES, 9],
            [1_000_000, DENSITIES, 15],
        ],
    ),
    "2 nodes of 2 workers, 1 Gbit/s": (
        2,
        2,
        "1gbit",
        [
            [100_000_000, DENSITIES, 5],
            [25_000_000, DENSITIES, 5],
            [5_000_000, DENSITIES, 9],
            [1_000_000, DENSITIES, 15],
        ],
    ),
}
QUICK = {"2 nodes of 1 worker, 200 Mbit/s": (2, 1, "200mbit", [[1_000_000, [0.01], 2]])}


def measure(quick: bool) -> dict:
    """One job per cluster, one after the other."""
    found = {}
    for name, (nodes, local, rate, plan) in (QUICK if quick else CLUSTERS).items():
        with Netlab(nodes, local, rate) as lab:
            arguments = ("--plan", json.dumps(plan))
            job = cluster.run(lab, "benchmarks.gradient_communication.worker", *arguments)
        found[name] = {"nodes": nodes, "local": local, **job}
    return {"clusters": found}


if __name__ == "__main__":
    report.main("gradient_communication", __doc__, measure, tables.render)
