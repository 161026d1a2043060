"""How long does each way of summing gradients take between nodes, and what does it send?

make bench-gradient_communication                         measures, publishes; an hour; root, Linux
python -m benchmarks.gradient_communication.main --quick  a million elements, two nodes; prints only
"""

import json

from benchmarks import cluster, report
from benchmarks.gradient_communication import tables
from tf_sparse_strategy.cluster import Netlab

DENSITIES = [0.001, 0.01, 0.05]
# TensorFlow's pool keeps what is freed: of 100 million elements, more than eight workers find in 24 GB.
GIVES_BACK = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
# By name: (nodes, workers per node, rate, [[elements, densities, rounds], ...], environment)
CLUSTERS = {
    "4 nodes of 2 workers, 200 Mbit/s": (
        4,
        2,
        "200mbit",
        # The largest first, lest they find no room at the end.
        [[25_000_000, DENSITIES, 5], [5_000_000, DENSITIES, 9], [1_000_000, DENSITIES, 15]],
        {},
    ),
    "2 nodes of 2 workers, 1 Gbit/s": (
        2,
        2,
        "1gbit",
        [[100_000_000, [0.01], 5], [25_000_000, DENSITIES, 5], [1_000_000, DENSITIES, 15]],
        {},
    ),
    "4 nodes of 2 workers, 200 Mbit/s, the largest": (
        4,
        2,
        "200mbit",
        [[100_000_000, [0.01], 3]],
        GIVES_BACK,
    ),
}
QUICK = {"2 nodes of 1 worker, 200 Mbit/s": (2, 1, "200mbit", [[1_000_000, [0.01], 2]], {})}


def measure(quick: bool) -> dict:
    """One job per cluster, one after the other."""
    found, clusters = {}, QUICK if quick else CLUSTERS
    for name, (nodes, local, rate, plan, environment) in reversed(clusters.items()):  # what may fail first
        with Netlab(nodes, local, rate) as lab:
            arguments = ("--plan", json.dumps(plan))
            worker = "benchmarks.gradient_communication.worker"
            job = cluster.run(lab, worker, *arguments, environment=environment)
        found[name] = {"nodes": nodes, "local": local, "environment": environment, **job}
    return {"clusters": {name: found[name] for name in clusters}}


if __name__ == "__main__":
    report.main("gradient_communication", __doc__, measure, tables.render)
