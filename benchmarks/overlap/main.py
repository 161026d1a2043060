"""How much of the communication does DeAR hide, and what do others?

make bench-overlap                         measures, publishes; an hour or more; root, Linux
python -m benchmarks.overlap.main --quick  two nodes, one rate, a small model; prints only; some minutes

A run that was interrupted goes on where it was: a cluster in benchmarks/overlap/results/results.json that was
measured by the same code is not measured again. To measure all again, delete the file.
"""

import pathlib
import tempfile
from typing import NamedTuple

from benchmarks import cluster, continuing, report
from benchmarks.overlap import tables
from benchmarks.overlap.names import BUCKET, BUCKET_NAME, HOROVOD
from tf_sparse_strategy.cluster import Netlab
from tf_sparse_strategy.cluster.rate import parse_rate

# Workers, one on each node. Half an all-reduce takes about as long as the backward pass; longer than the
# forward pass; less than either, and then the backward pass hides a whole one.
CLUSTERS = ((4, "70mbit"), (8, "110mbit"), (4, "220mbit"))
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


DEFAULT = "128 MB, default"
TAPES = {
    DEFAULT: Tape({}),
    BUCKET_NAME: Tape({"HOROVOD_FUSION_THRESHOLD": str(BUCKET)}),
    # A warm-up and five pairs of a size and a cycle, each measured five times. Without these bounds it would
    # try for thousands of steps; what is on or off doubles them, unless it is given.
    "autotuned": Tape(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "4",
            "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
            "HOROVOD_CACHE_CAPACITY": "1024",
        },
        warm_up=40,
        one_model=True,
    ),
}


def measure(quick: bool, file: pathlib.Path | None) -> dict:
    """For each cluster a job of all our methods, then those of Horovod's tape; kept in `file` as it goes."""
    clusters, models, rounds, tapes = CLUSTERS, MODELS, ROUNDS, TAPES
    if quick:
        clusters, models, rounds, tapes = ((2, "500mbit"),), ("small",), 2, {DEFAULT: TAPES[DEFAULT]}
    names = {(c, model): f"{model}, {c[0]} workers, {c[1]}" for c in clusters for model in models}
    found = continuing.begin(file, names.values())
    for workers, rate in clusters:
        if all(names[(workers, rate), model] in found["jobs"] for model in models):
            continue
        with Netlab(workers, 1, rate) as lab:
            facts = {"workers": workers, "rate": parse_rate(rate)}
            for model, job in _jobs(lab, models, rounds, tapes).items():
                found["jobs"][names[(workers, rate), model]] = facts | job
        continuing.keep(found, file)
    return found


def _jobs(lab, models, rounds, tapes):
    worker, common = "benchmarks.overlap.worker", ("--rounds", str(rounds), "--steps", str(STEPS))
    with tempfile.TemporaryDirectory(prefix="tss_bench_") as cache:  # nothing is known from earlier runs
        jobs = cluster.run(lab, worker, *common, "--models", *models, environment={"TSS_CACHE_DIR": cache})
    for name, tape in tapes.items():
        horovods = ("--horovod", "--warm_up", str(tape.warm_up), "--models")
        for together in [[model] for model in models] if tape.one_model else [models]:
            theirs = cluster.run(lab, worker, *common, *horovods, *together, environment=tape.variables)
            for model in together:
                for kind in ("seconds", "weights"):
                    jobs[model][kind][f"{HOROVOD}, {name}"] = theirs[model][kind][HOROVOD]
    return jobs


if __name__ == "__main__":
    report.main("overlap", __doc__, measure, tables.render, continues=True)
