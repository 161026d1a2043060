"""Times MSTopK on this machine's CPU and writes JSON.

bazel build //:native //benchmarks/mstopk:mstopk_bench.so
python -m benchmarks.mstopk.run selection numpy_dispatch inputs threads fused \
    --out benchmarks/mstopk/results/cpu.json
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from benchmarks.mstopk.experiments import EXPERIMENTS
from benchmarks.mstopk.native import Native

# numpy's AVX-512 selection is slow on some processors, e.g. Zen 4: both code paths are timed.
WITHOUT_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"


def processor() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in text.splitlines() if "model name" in line]
    return f"{names[0]}, {len(names)} cores"


def in_other_dispatch(name: str, part: pathlib.Path) -> list[dict]:
    """Runs an experiment in a process whose numpy does without AVX-512."""
    command = [sys.executable, "-m", "benchmarks.mstopk.run", name, "--out", str(part)]
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512}
    subprocess.run(command, check=True, env=environment)
    records = json.loads(part.read_text())["experiments"][name]
    part.unlink()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    native = Native()
    results = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "instruction_set": native.instruction_set(),
        "load_average_before": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
        "experiments": {},
    }
    for name in arguments.experiments:
        print(name, flush=True)
        records = EXPERIMENTS[name](native)
        if name == "numpy_dispatch" and "NPY_DISABLE_CPU_FEATURES" not in os.environ:
            records += in_other_dispatch(name, arguments.out.with_suffix(".part.json"))
        results["experiments"][name] = records
    results["load_average_after"] = os.getloadavg()
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
