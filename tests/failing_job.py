"""Runs a job in which something goes wrong, and leaves the failing workers alone.

horovodrun ends all workers when one fails; here each must end by itself.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

from tests import job

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKER = ROOT / "tests" / "multiprocess" / "failure_worker.py"
STARTING = 150  # seconds, on a busy machine
WITHIN = 60  # seconds that a worker has after the fault
PYTHON_ERROR = 1  # exit code
REMEDY = "Every worker must make the same collective calls"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    "PYTHONUNBUFFERED": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
}


@dataclasses.dataclass
class Ended:
    """How one worker ended.

    Args:
      code: its exit code; None where it had to be killed, as a stopped process must be.
      seconds: between the fault and its end.
      output: what it printed.
    """

    code: int | None
    seconds: float
    output: str

    @property
    def cause(self) -> str:
        """What the watchdog printed."""
        lines = re.findall(r"^tf_sparse_strategy, rank \d \([\w.]+\): (.*)$", self.output, re.M)
        return "\n".join(lines)


def check_all_blame(ended: dict[int, Ended], code: int, *words: str) -> None:
    """All of these workers ended by themselves, with this code, within a minute, and name the cause."""
    for rank, worker in ended.items():
        assert worker.code == code, f"rank {rank}: {worker.code}\n{worker.output[-4000:]}"
        assert worker.seconds <= WITHIN
        for word in words:
            assert word in worker.cause, f"rank {rank}:\n{worker.output[-4000:]}"


def run(workers: int, *arguments, present=None, environment=None):
    """Runs failure_worker.py.

    Args:
      workers: P.
      arguments: of the program.
      present: the ranks that are started; all by default.
      environment: more of it.

    Returns:
      {rank: Ended}.
    """
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    more = {**ENVIRONMENT, **(environment or {})}
    with job.started(f"localhost:{workers}", command, more, present, **pipes) as processes:
        return _watch(processes)


def _is_stopped(process) -> bool:
    """By a signal: what would end it never comes."""
    status = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def _watch(job):
    outputs = {rank: [] for rank in job}

    def read(rank):
        for line in job[rank].stdout:
            outputs[rank].append(line)

    readers = [threading.Thread(target=read, args=(rank,)) for rank in job]
    for reader in readers:
        reader.start()
    begin = time.time()
    fault, ended = None, {}
    while any(rank not in ended and not _is_stopped(job[rank]) for rank in job):
        time.sleep(0.05)
        now = time.time()
        if fault is None:
            said = re.search(r"fault at ([0-9.]+)", "".join(sum(outputs.values(), [])))
            fault = said and float(said[1])
        for rank, process in job.items():
            if rank not in ended and process.poll() is not None:
                ended[rank] = now
        if now > (fault + WITHIN if fault else begin + STARTING):
            break
    for process in job.values():
        process.kill()
    for reader in readers:
        reader.join()
    return {
        rank: Ended(
            job[rank].returncode if rank in ended else None,
            ended.get(rank, now) - (fault or begin),
            "".join(lines),
        )
        for rank, lines in outputs.items()
    }
