"""LOCAL and CROSS collectives: all-to-all with empty splits, or Horovod process sets?

make bench-group_collectives                         measures, publishes; some 3 minutes
python -m benchmarks.group_collectives.main --quick  small vectors and few rounds; prints only
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import report
from benchmarks.group_collectives import tables

# Name of the job, as measure.py knows it: (horovodrun's -H, node of each rank).
JOBS = {
    "process_sets": ("localhost:2,127.0.0.1:2", "0,0,1,1"),
    "no_process_sets": ("localhost:2,127.0.0.1:2", "0,0,1,1"),
    "overhead": ("localhost:2", "0,0"),
}


def run(job: str, quick: bool) -> list[dict]:
    """Runs one job under horovodrun and returns its records."""
    hosts, nodes = JOBS[job]
    print(f"{job}: workers on {hosts}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        output = os.path.join(scratch, "records.json")
        worker = [sys.executable, "-m", "benchmarks.group_collectives.measure", job, output]
        worker += ["--nodes", nodes] + ["--quick"] * quick
        launcher = pathlib.Path(sys.executable).with_name("horovodrun")
        count = str(nodes.count(",") + 1)
        subprocess.run(
            [launcher, "--gloo", "-np", count, "-H", hosts, *worker],
            env={**os.environ, "PYTHONPATH": str(report.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd=report.ROOT,
            check=True,
        )
        return json.loads(pathlib.Path(output).read_text())


def wrong_results_so_far() -> list[dict]:
    """Records of earlier published runs that held wrong results: rare, hence kept."""
    results = json.loads(report.results_file("group_collectives").read_text())
    fresh = [
        {"date": results["environment"]["date"], "job": job}
        | {key: value for key, value in record.items() if key != "seconds"}
        for job, records in results["jobs"].items()
        for record in records
        if record["wrong"]
    ]
    return results["seen_wrong"] + fresh


def measure(quick: bool) -> dict:
    """All jobs, one after the other."""
    return {"seen_wrong": wrong_results_so_far(), "jobs": {job: run(job, quick) for job in JOBS}}


if __name__ == "__main__":
    report.main("group_collectives", __doc__, measure, tables.render)
