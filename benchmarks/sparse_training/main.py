"""Does sparse communication make training faster, end to end, and does Auto know when it does not?

make bench-sparse_training                         measures, publishes; some 35 minutes; root, Linux
python -m benchmarks.sparse_training.main --quick  two nodes, one model; prints only
"""

from benchmarks import cluster, report
from benchmarks.sparse_training import tables
from tf_sparse_strategy.cluster import Netlab

# By name: rounds. More where two ways are to differ by little.
MODELS = {"VGG-like": 6, "Transformer": 6, "small CNN": 40}
CLUSTERS = {
    "4 nodes of 2 workers, 200 Mbit/s": (4, 2, "200mbit", MODELS),
    "2 nodes of 2 workers, 1 Gbit/s": (2, 2, "1gbit", MODELS),
}
QUICK = {"2 nodes of 1 worker, 200 Mbit/s": (2, 1, "200mbit", {"VGG-like": 2})}
DENSITY, STEPS = 0.01, 3


def measure(quick: bool) -> dict:
    """One job per cluster and model, one after the other."""
    found = {}
    for name, (nodes, local, rate, models) in (QUICK if quick else CLUSTERS).items():
        found[name] = {}
        with Netlab(nodes, local, rate) as lab:
            for model, rounds in models.items():
                options = {"task": model, "density": DENSITY, "rounds": rounds, "steps": STEPS}
                given = [word for option, value in options.items() for word in (f"--{option}", str(value))]
                found[name][model] = cluster.run(lab, "benchmarks.sparse_training.worker", *given)
    return {"density": DENSITY, "clusters": found}


if __name__ == "__main__":
    report.main("sparse_training", __doc__, measure, tables.render)
