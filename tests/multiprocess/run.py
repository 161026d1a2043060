"""Runs pytest under real Horovod workers on this machine, some of them posing as other nodes.

    python -m tests.multiprocess.run -np 4 tests/multiprocess/test_collectives.py [pytest arguments]

Four workers stand on two nodes of two ("localhost" and "127.0.0.1" are different hosts to Horovod), so that
hierarchical schemes are exercised; `--hosts` overrides. Every worker runs every test, in the same order, and
stops at the first failure of any (conftest.py). The exit code is the first failing worker's; what failing
workers printed is printed. `$XML_OUTPUT_FILE` gets rank 0's JUnit report, or the first failing worker's.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import time

from tests import job

_FAREWELL = 60  # seconds; the others' watchdogs end them sooner
_HOSTS = {4: "localhost:2,127.0.0.1:2"}
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    # A worker that does not call ends the job instead of the patience of the test runner.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
    # What is freed is given back: TensorFlow's pools and glibc's arenas would count as memory that is held.
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
}


def _parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-np", type=int, required=True, help="number of workers")
    parser.add_argument("--hosts", help="horovodrun's -H, e.g. localhost:2,127.0.0.1:1")
    parser.add_argument("file", help="a pytest file; further ones and pytest's options may follow")
    return parser.parse_known_args(argv)


def main(argv=None) -> int:
    """Returns the exit code of the job."""
    args, pytest_args = _parse(argv)
    hosts = args.hosts or _HOSTS.get(args.np, f"localhost:{args.np}")
    with tempfile.TemporaryDirectory(prefix="tss_test_") as scratch:
        command = [sys.executable, "-m", "tests.multiprocess.worker", scratch, args.file, *pytest_args]
        paths = os.pathsep.join([os.getcwd(), *sys.path])
        with job.started(hosts, command, _ENVIRONMENT | {"PYTHONPATH": paths}) as workers:
            code = _first_failure(workers)
        _report(pathlib.Path(scratch), args.np)
    return code


def _first_failure(workers) -> int:
    """Waits for all; for `_FAREWELL` only once one has failed. Returns its exit code, 0 if none fails."""
    code, deadline = 0, float("inf")
    while any(worker.poll() is None for worker in workers.values()) and time.monotonic() < deadline:
        codes = [worker.returncode for worker in workers.values()]
        if code == 0 and any(codes):
            code, deadline = next(filter(None, codes)), time.monotonic() + _FAREWELL
        time.sleep(0.05)
    return code or next(filter(None, (worker.returncode for worker in workers.values())), 0)


def _report(scratch: pathlib.Path, workers: int) -> None:
    """Prints one worker's log and hands over its JUnit report."""
    logs = [scratch / f"{rank}.log" for rank in range(workers)]
    failed = [rank for rank in range(workers) if not (scratch / f"{rank}.ok").exists()]
    shown = failed[0] if failed else 0
    for rank in failed or [0]:
        print(f"---- worker {rank} of {workers} ----")
        print(logs[rank].read_text()[-8000:] if logs[rank].exists() else "(never started)")
    report = scratch / f"{shown}.xml"
    if "XML_OUTPUT_FILE" in os.environ and report.exists():
        shutil.copy(report, os.environ["XML_OUTPUT_FILE"])


if __name__ == "__main__":
    sys.exit(main())
