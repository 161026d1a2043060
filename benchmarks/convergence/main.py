"""Do models learn as well from sparse gradients?

make bench-convergence                         trains, publishes; an hour and a half; root, Linux
python -m benchmarks.convergence.main --quick  few workers, one seed, few epochs; prints only
"""

from benchmarks import cluster, report
from benchmarks.convergence import tables
from tf_sparse_strategy.cluster import Netlab

SEEDS, TASKS = 3, ("digits", "words")
WORKER = "benchmarks.convergence.worker"


def measure(quick: bool) -> dict:
    """Both tasks on nodes of one worker, each of which selects for itself, and some on nodes of two."""
    options = ("--seeds", "1", "--quick") if quick else ("--seeds", str(SEEDS))
    nodes = 2 if quick else 4
    with Netlab(nodes, local=1, rate="10gbit") as lab:
        found = {task: cluster.run(lab, WORKER, "--task", task, *options) for task in TASKS}
    with Netlab(nodes=2, local=2, rate="10gbit") as lab:
        for task in TASKS:
            shared = cluster.run(lab, WORKER, "--task", task, "--shared", *options)
            found[task]["shared"] = {key: shared[key] for key in ("reached", "sent")}
    return {"nodes": nodes, **found}


if __name__ == "__main__":
    report.main("convergence", __doc__, measure, tables.render)
