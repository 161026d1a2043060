"""How close is MSTopK to one read of memory, on this machine's CPU?

make bench-mstopk                           measures, publishes; some minutes
python -m benchmarks.mstopk.main --quick    each contender once; prints only
"""

import os
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

from benchmarks import report
from benchmarks.mstopk import dispatch, tables
from benchmarks.mstopk.experiments import EXPERIMENTS, Run
from benchmarks.mstopk.native import Native

LIBRARIES = ("//:native", "//benchmarks/mstopk:mstopk_bench.so")


def measure(quick: bool) -> dict:
    """All experiments, one after the other, each with its records."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    subprocess.run(["bazel", "build", "--noshow_progress", *LIBRARIES], cwd=report.ROOT, check=True)
    run, found = Run(Native(), quick), {}
    for name, experiment in EXPERIMENTS.items():
        print(name, flush=True)
        found[name] = experiment(run)
    found["numpy_dispatch"] += dispatch.elsewhere(quick)
    return {"instruction set": run.native.instruction_set(), "experiments": found}


if __name__ == "__main__":
    report.main("mstopk", __doc__, measure, tables.render)
