"""Does sparse communication make training faster, end to end, and does Auto know when it does not?

make bench-sparse_training                         measures, publishes; an hour; root, Linux
python -m benchmarks.sparse_training.main --quick  two nodes, one model; prints only
"""

from benchmarks import cluster, report
from benchmarks.sparse_training import tables
from tf_sparse_strategy.cluster import Netlab

# By name: rounds of all methods; and, where some are to differ by little, many of these by themselves.
MODELS = {"VGG-like": {"all": 6}, "Transformer": {"all": 6}, "small CNN": {"all": 12, "close": 100}}
CLUSTERS = {
    "4 nodes of 2 workers, 200 Mbit/s": (4, 2, "200mbit", MODELS),
    "2 nodes of 2 workers, 1 Gbit/s": (2, 2, "1gbit", MODELS),
}
QUICK = {"2 nodes of 1 worker, 200 Mbit/s": (2, 1, "200mbit", {"VGG-like": {"all": 2}})}
DENSITY, STEPS = 0.01, 3


def measure(quick: bool) -> dict:
    """One job per cluster, model and choice of methods, one after the other."""
    found = {}
    for name, (nodes, local, rate, models) in (QUICK if quick else CLUSTERS).items():
        found[name] = {}
        with Netlab(nodes, local, rate) as lab:
            for model, plan in models.items():
                jobs = {methods: job(lab, model, methods, rounds) for methods, rounds in plan.items()}
                found[name][model] = jobs.pop("all") | jobs
    return {"density": DENSITY, "clusters": found}


def job(lab: Netlab, model: str, methods: str, rounds: int) -> dict:
    """What the workers of `lab` hand in."""
    options = {"task": model, "methods": methods, "density": DENSITY, "rounds": rounds, "steps": STEPS}
    given = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    return cluster.run(lab, "benchmarks.sparse_training.worker", *given)


if __name__ == "__main__":
    report.main("sparse_training", __doc__, measure, tables.render)
