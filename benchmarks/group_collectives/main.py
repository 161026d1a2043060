"""LOCAL and CROSS collectives: all-to-all with empty splits, or Horovod process sets?

make bench-group_collectives              measures and prints the tables
python -m benchmarks.group_collectives.main --json FILE    also keeps what was measured
python -m benchmarks.group_collectives.main --document     writes the tables of the committed
                                          results into docs/group_collectives.md
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
from importlib import metadata

from benchmarks.group_collectives import tables

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/group_collectives/results/results.json"
DOCUMENT = ROOT / "docs/group_collectives.md"
# Name of the job, as measure.py knows it: (horovodrun's -H, node of each rank).
JOBS = {
    "process_sets": ("localhost:2,127.0.0.1:2", "0,0,1,1"),
    "no_process_sets": ("localhost:2,127.0.0.1:2", "0,0,1,1"),
    "overhead": ("localhost:2", "0,0"),
}


def environment() -> dict:
    """What a reader needs to judge the figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}",
        "load average at start": os.getloadavg()[0],
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in ("tensorflow", "horovod", "numpy")},
    }


def run(job: str) -> list[dict]:
    """Runs one job under horovodrun and returns its records."""
    hosts, nodes = JOBS[job]
    with tempfile.TemporaryDirectory() as scratch:
        output = os.path.join(scratch, "records.json")
        worker = [sys.executable, "-m", "benchmarks.group_collectives.measure"]
        launcher = pathlib.Path(sys.executable).with_name("horovodrun")
        count = str(nodes.count(",") + 1)
        subprocess.run(
            [launcher, "--gloo", "-np", count, "-H", hosts, *worker, job, output, "--nodes", nodes],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
            cwd=ROOT,
            check=True,
        )
        return json.loads(pathlib.Path(output).read_text())


def main() -> None:
    """Measures, prints, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="file for the measurements")
    parser.add_argument(
        "--document", action="store_true", help="renew the document's tables; measure nothing"
    )
    args = parser.parse_args()
    if args.document:
        DOCUMENT.write_text(tables.insert(DOCUMENT.read_text(), json.loads(RESULTS.read_text())))
        return
    results = {"environment": environment(), "jobs": {job: run(job) for job in JOBS}}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(tables.render(results))


if __name__ == "__main__":
    main()
