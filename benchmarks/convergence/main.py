"""Do models learn as well from sparse gradients?

make bench-convergence                         trains, publishes; half an hour; root, Linux
python -m benchmarks.convergence.main --quick  two workers, one seed, few epochs; prints only
"""

from benchmarks import cluster, report
from benchmarks.convergence import tables
from tf_sparse_strategy.cluster import Netlab

SEEDS = 3


def measure(quick: bool) -> dict:
    """Both tasks on nodes of one worker: each worker selects for itself."""
    options = ("--seeds", "1", "--quick") if quick else ("--seeds", str(SEEDS))
    with Netlab(nodes=2 if quick else 4, local=1, rate="10gbit") as lab:
        found = {
            task: cluster.run(lab, "benchmarks.convergence.worker", "--task", task, *options)
            for task in ("digits", "words")
        }
    return {"workers": 2 if quick else 4, **found}


if __name__ == "__main__":
    report.main("convergence", __doc__, measure, tables.render)
