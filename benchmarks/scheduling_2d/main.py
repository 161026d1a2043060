"""How much of the stall that gradients of tables cause is hidden by delaying rows?

make bench-scheduling_2d                         measures, publishes; half an hour; root, Linux
python -m benchmarks.scheduling_2d.main --quick  two nodes, one rate, a small model; prints only; a minute
"""

from benchmarks import cluster, report
from benchmarks.scheduling_2d import tables
from benchmarks.scheduling_2d.settings import MODELS
from tf_sparse_strategy.cluster import Netlab

NODES, RATES, ROUNDS, STEPS = (8,), ("125mbit",), 4, 12


def measure(quick: bool) -> dict:
    """For each cluster and model a job of all methods."""
    nodes, rates, models, rounds = NODES, RATES, [name for name in MODELS if name != "small"], ROUNDS
    if quick:
        nodes, rates, models, rounds = (2,), ("20mbit",), ["small"], 2
    found = {}
    for workers in nodes:
        for rate in rates:
            with Netlab(workers, 1, rate) as lab:
                for model in models:
                    settings = ("--model", model, "--rounds", str(rounds), "--steps", str(STEPS))
                    job = cluster.run(lab, "benchmarks.scheduling_2d.worker", *settings)
                    found[f"{model}, {workers} workers, {rate}"] = job
    return {"jobs": found}


if __name__ == "__main__":
    report.main("scheduling_2d", __doc__, measure, tables.render)
