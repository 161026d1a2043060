"""How much of the communication does DeAR hide, and what do others?

make bench-overlap                         measures, publishes; hours; root, Linux
python -m benchmarks.overlap.main --quick  two nodes, one rate, a small model; prints only; some minutes
"""

import tempfile

from benchmarks import cluster, report
from benchmarks.overlap import tables
from benchmarks.overlap.names import HOROVOD
from tf_sparse_strategy.cluster import Netlab

NODES, RATES = (4, 8), ("250mbit", "500mbit", "1gbit")
MODELS = ("cnn", "transformer", "lm")
ROUNDS, STEPS = 4, 4
# Settings of Horovod's own fusion, under which its tape is run.
HOROVOD_SETTINGS = {
    "64 MB, default": {},
    "25 MB": {"HOROVOD_FUSION_THRESHOLD": str(25 << 20)},
    "autotuned": {"HOROVOD_AUTOTUNE": "1"},
}


def measure(quick: bool) -> dict:
    """For each cluster and model a job of all our methods, then one of each of Horovod's settings."""
    nodes, rates, models, rounds, settings = NODES, RATES, MODELS, ROUNDS, HOROVOD_SETTINGS
    if quick:
        nodes, rates, models, rounds, settings = (2,), ("500mbit",), ("small",), 2, {"64 MB, default": {}}
    found = {}
    for workers in nodes:
        for rate in rates:
            with Netlab(workers, 1, rate) as lab:
                for model in models:
                    found[f"{model}, {workers} workers, {rate}"] = _job(lab, model, rounds, settings)
    return {"jobs": found}


def _job(lab, model, rounds, settings):
    common = ("--model", model, "--rounds", str(rounds), "--steps", str(STEPS))
    with tempfile.TemporaryDirectory(prefix="tss_bench_") as cache:  # nothing is known from earlier runs
        job = cluster.run(lab, "benchmarks.overlap.worker", *common, settings={"TSS_CACHE_DIR": cache})
    for name, variables in settings.items():
        theirs = cluster.run(lab, "benchmarks.overlap.worker", *common, "--horovod", settings=variables)
        job["seconds"][f"{HOROVOD}, {name}"] = theirs["seconds"][HOROVOD]
        job["weights"][f"{HOROVOD}, {name}"] = theirs["weights"][HOROVOD]
    return {"workers": len(lab.nodes), **job}


if __name__ == "__main__":
    report.main("overlap", __doc__, measure, tables.render)
