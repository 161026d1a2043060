"""How close is MSTopK to one read of memory, on this machine's CPU?

make bench-mstopk                                    measures everything and prints the tables
python -m benchmarks.mstopk.main inputs threads      only some experiments, and no tables
python -m benchmarks.mstopk.main --json FILE         also keeps what was measured
python -m benchmarks.mstopk.main --document          writes the tables of the committed results
                                                     into docs/mstopk.md; measures nothing
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from benchmarks.mstopk import tables
from benchmarks.mstopk.experiments import EXPERIMENTS
from benchmarks.mstopk.native import Native

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/mstopk/results/cpu.json"
DOCUMENT = ROOT / "docs/mstopk.md"
LIBRARIES = ("//:native", "//benchmarks/mstopk:mstopk_bench.so")

# numpy's AVX-512 selection is slow on some processors, e.g. Zen 4: both code paths are timed.
WITHOUT_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"


def processor() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in text.splitlines() if "model name" in line]
    return f"{names[0]}, {len(names)} cores"


def in_other_dispatch(name: str) -> list[dict]:
    """Runs an experiment in a process whose numpy does without AVX-512."""
    with tempfile.TemporaryDirectory() as scratch:
        part = pathlib.Path(scratch, "part.json")
        command = [sys.executable, "-m", "benchmarks.mstopk.main", name, "--json", str(part)]
        environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512}
        subprocess.run(command, check=True, env=environment)
        return json.loads(part.read_text())["experiments"][name]


def measure(names: list[str]) -> dict:
    """Runs experiments; returns what is kept as JSON."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    subprocess.run(["bazel", "build", "--noshow_progress", *LIBRARIES], cwd=ROOT, check=True)
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
    for name in names:
        print(name, flush=True)
        records = EXPERIMENTS[name](native)
        if name == "numpy_dispatch" and "NPY_DISABLE_CPU_FEATURES" not in os.environ:
            records += in_other_dispatch(name)
        results["experiments"][name] = records
    results["load_average_after"] = os.getloadavg()
    return results


def main() -> None:
    """Measures, prints, and writes what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", help=f"of {', '.join(EXPERIMENTS)}; default all")
    parser.add_argument("--json", type=pathlib.Path, help="file for the measurements")
    parser.add_argument(
        "--document", action="store_true", help="renew the document's tables; measure nothing"
    )
    args = parser.parse_args()
    unknown = set(args.experiments) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no experiment {sorted(unknown)}; there are {', '.join(EXPERIMENTS)}.")
    if args.document:
        DOCUMENT.write_text(tables.insert(DOCUMENT.read_text(), json.loads(RESULTS.read_text())))
        return
    results = measure(args.experiments or list(EXPERIMENTS))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if not args.experiments:
        print(tables.render(results))


if __name__ == "__main__":
    main()
