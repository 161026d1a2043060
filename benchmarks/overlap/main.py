"""How much of the communication does DeAR hide, and what do others?

make bench-overlap                         measures, publishes; some hours; root, Linux
python -m benchmarks.overlap.main --quick  two nodes, one rate, a small model; prints only; some minutes
"""

import tempfile
from typing import NamedTuple

from benchmarks import cluster, report
from benchmarks.overlap import tables
from benchmarks.overlap.names import BUCKET, BUCKET_NAME, HOROVOD
from tf_sparse_strategy.cluster import Netlab

CLUSTERS = ((4, "250mbit"), (4, "100mbit"), (8, "100mbit"))  # workers, one on each node
MODELS = ("cnn", "transformer", "lm")
ROUNDS, STEPS = 3, 2


class Tape(NamedTuple):
    """Horovod's tape under a setting of its own fusion.

    Attributes:
      variables: of the environment.
      warm_up: steps before anything is timed.
      one_model: whether each model has a job of its own: what is tuned for one would stay for the next.
    """

    variables: dict[str, str]
    warm_up: int = 0
    one_model: bool = False


TAPES = {
    "64 MB, default": Tape({}),
    BUCKET_NAME: Tape({"HOROVOD_FUSION_THRESHOLD": str(BUCKET)}),
    # As many sizes as DeAR tries. Without these bounds it would try for thousands of steps.
    "autotuned": Tape(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "10",
        },
        warm_up=40,
        one_model=True,
    ),
}


def measure(quick: bool) -> dict:
    """For each cluster a job of all our methods, then those of Horovod's tape."""
    clusters, models, rounds, tapes = CLUSTERS, MODELS, ROUNDS, TAPES
    if quick:
        clusters, models, rounds = ((2, "500mbit"),), ("small",), 2
        tapes = {"64 MB, default": TAPES["64 MB, default"]}
    found = {}
    for workers, rate in clusters:
        with Netlab(workers, 1, rate) as lab:
            for model, job in _jobs(lab, models, rounds, tapes).items():
                found[f"{model}, {workers} workers, {rate}"] = {"workers": workers, **job}
    return {"jobs": found}


def _jobs(lab, models, rounds, tapes):
    worker, common = "benchmarks.overlap.worker", ("--rounds", str(rounds), "--steps", str(STEPS))
    with tempfile.TemporaryDirectory(prefix="tss_bench_") as cache:  # nothing is known from earlier runs
        jobs = cluster.run(lab, worker, *common, "--models", *models, settings={"TSS_CACHE_DIR": cache})
    for name, tape in tapes.items():
        horovods = ("--horovod", "--warm_up", str(tape.warm_up), "--models")
        for together in [[model] for model in models] if tape.one_model else [models]:
            theirs = cluster.run(lab, worker, *common, *horovods, *together, settings=tape.variables)
            for model in together:
                for kind in ("seconds", "weights"):
                    jobs[model][kind][f"{HOROVOD}, {name}"] = theirs[model][kind][HOROVOD]
    return jobs


if __name__ == "__main__":
    report.main("overlap", __doc__, measure, tables.render)
