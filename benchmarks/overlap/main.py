"""How much of the communication does DeAR hide, and what do others?

make bench-overlap                         measures, publishes; an hour; root, Linux
python -m benchmarks.overlap.main --quick  two nodes, one rate, a small model; prints only; some minutes
"""

import tempfile

from benchmarks import cluster, report
from benchmarks.overlap import tables
from benchmarks.overlap.names import HOROVOD
from tf_sparse_strategy.cluster import Netlab

CLUSTERS = ((4, "500mbit"), (4, "1gbit"), (4, "2gbit"), (8, "500mbit"))  # workers, one on each node
MODELS = ("cnn", "transformer", "lm")
ROUNDS, STEPS = 3, 3
# Settings of Horovod's own fusion, under which its tape is run.
HOROVOD_SETTINGS = {
    "64 MB, default": {},
    "25 MB": {"HOROVOD_FUSION_THRESHOLD": str(25 << 20)},
    "autotuned": {"HOROVOD_AUTOTUNE": "1"},
}


def measure(quick: bool) -> dict:
    """For each cluster a job of all our methods, then one of each of Horovod's settings."""
    clusters, models, rounds, settings = CLUSTERS, MODELS, ROUNDS, HOROVOD_SETTINGS
    if quick:
        clusters, models, rounds, settings = ((2, "500mbit"),), ("small",), 2, {"64 MB, default": {}}
    found = {}
    for workers, rate in clusters:
        with Netlab(workers, 1, rate) as lab:
            for model, job in _jobs(lab, models, rounds, settings).items():
                found[f"{model}, {workers} workers, {rate}"] = {"workers": workers, **job}
    return {"jobs": found}


def _jobs(lab, models, rounds, settings):
    common = ("--models", *models, "--rounds", str(rounds), "--steps", str(STEPS))
    with tempfile.TemporaryDirectory(prefix="tss_bench_") as cache:  # nothing is known from earlier runs
        jobs = cluster.run(lab, "benchmarks.overlap.worker", *common, settings={"TSS_CACHE_DIR": cache})
    for name, variables in settings.items():
        theirs = cluster.run(lab, "benchmarks.overlap.worker", *common, "--horovod", settings=variables)
        for model, job in jobs.items():
            for kind in ("seconds", "weights"):
                job[kind][f"{HOROVOD}, {name}"] = theirs[model][kind][HOROVOD]
    return jobs


if __name__ == "__main__":
    report.main("overlap", __doc__, measure, tables.render)
