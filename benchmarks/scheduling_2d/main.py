"""How much of the stall of a model with tables does 2D scheduling hide?

make bench-scheduling_2d                         measures, publishes; forty minutes; root, Linux
python -m benchmarks.scheduling_2d.main --quick  two nodes, a small model; prints only; a minute
"""

import numpy as np

from benchmarks import cluster, report
from benchmarks.scheduling_2d import tables
from benchmarks.scheduling_2d.settings import GATHERED, MODELS
from tf_sparse_strategy.cluster import Netlab

NODES, RATE, ROUNDS, STEPS = 8, "125mbit", 3, 5


def measure(quick: bool) -> dict:
    """For each model a job of all ways, and one of Horovod's."""
    nodes, rate, models, rounds = NODES, RATE, [name for name in MODELS if name != "small"], ROUNDS
    if quick:
        nodes, rate, models, rounds = 2, "20mbit", ["small"], 2
    found = {}
    for model in models:
        with Netlab(nodes, 1, rate) as lab:
            settings = ("--model", model, "--rounds", str(rounds), "--steps", str(STEPS))
            job = cluster.run(lab, "benchmarks.scheduling_2d.worker", *settings)
            # By themselves: whole tables beside those of all ways would not fit into memory.
            alone = cluster.run(lab, "benchmarks.scheduling_2d.horovod_worker", *settings)
        apart = np.abs(np.array(alone["kernel"]) - np.array(job.pop("kernel")))
        job["differences"][GATHERED] = float(np.nan_to_num(np.max(apart), nan=np.inf))
        job["horovod"] = alone["seconds"]
        found[f"{model}, {nodes} workers, {rate}"] = job
    return {"jobs": found}


if __name__ == "__main__":
    report.main("scheduling_2d", __doc__, measure, tables.render)
