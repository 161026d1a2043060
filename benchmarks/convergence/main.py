"""Do models learn as well from sparse gradients?

make bench-convergence                         trains, publishes; some 50 minutes; root, Linux
python -m benchmarks.convergence.main --quick  two workers, one seed, two epochs; prints only
"""

from benchmarks import cluster, report
from benchmarks.convergence import digits, tables, words
from tf_sparse_strategy.cluster import Netlab

SEEDS = 3


def measure(quick: bool) -> dict:
    """Both tasks on nodes of one worker: each worker selects for itself."""
    worker, seeds = "benchmarks.convergence.worker", str(1 if quick else SEEDS)
    with Netlab(nodes=2 if quick else 4, local=1, rate="10gbit") as lab:
        images = ("--task", "digits", "--seeds", seeds, "--epochs", str(2 if quick else digits.EPOCHS))
        text = ("--task", "words", "--seeds", seeds, "--epochs", str(1 if quick else words.EPOCHS))
        part = ("--part", "0.02") if quick else ()
        found = {
            "digits": cluster.run(lab, worker, *images),
            "words": cluster.run(lab, worker, *text, *part),
        }
    return {"workers": 2 if quick else 4, **found}


if __name__ == "__main__":
    report.main("convergence", __doc__, measure, tables.render)
