"""How much of the stall that gradients of tables cause is hidden by delaying rows?

make bench-scheduling_2d                         measures, publishes; half an hour; root, Linux
python -m benchmarks.scheduling_2d.main --quick  two nodes, a small model; prints only; a minute
"""

from benchmarks import cluster, report
from benchmarks.scheduling_2d import tables
from benchmarks.scheduling_2d.settings import MODELS
from tf_sparse_strategy.cluster import Netlab
from tf_sparse_strategy.cluster.rate import DEFAULT_BUFFER

NODES, RATE, ROUNDS, STEPS = 8, "125mbit", 3, 12
DEEP = 0.5  # seconds of traffic that a port holds
JOBS = [*((name, DEFAULT_BUFFER) for name in MODELS if name != "small"), ("transformer", DEEP)]


def measure(quick: bool) -> dict:
    """For each model and cluster a job of all methods."""
    nodes, rate, jobs, rounds = NODES, RATE, JOBS, ROUNDS
    if quick:
        nodes, rate, jobs, rounds = 2, "20mbit", [("small", DEFAULT_BUFFER)], 2
    found = {}
    for model, buffer in jobs:
        with Netlab(nodes, 1, rate, buffer) as lab:
            settings = ("--model", model, "--rounds", str(rounds), "--steps", str(STEPS))
            job = cluster.run(lab, "benchmarks.scheduling_2d.worker", *settings)
        found[f"{model}, {nodes} workers, {rate}, ports hold {buffer * 1e3:g} ms"] = job
    return {"jobs": found}


if __name__ == "__main__":
    report.main("scheduling_2d", __doc__, measure, tables.render)
