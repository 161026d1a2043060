"""What goes wrong in a real job: every other worker ends, soon, with the cause; the job can resume."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests import failing_job
from tf_sparse_strategy.watchdog import EXIT_CODE

PYTHON_ERROR = 1
SIGKILL, SIGABRT = -9, -6
REMEDY = "Every worker must make the same collective calls"


def cause(output: str) -> str:
    """What the watchdog printed."""
    lines = re.findall(r"^tf_sparse_strategy, rank \d \([\w.]+\): (.*)$", output, re.M)
    return "\n".join(lines)


def check_all_blame(ended, code, *words):
    """All of these workers ended by themselves, with this code, within a minute, and name the cause."""
    for rank, worker in ended.items():
        assert worker.code == code, f"rank {rank}: {worker.code}\n{worker.output[-4000:]}"
        assert worker.seconds <= 60
        for word in words:
            assert word in cause(worker.output), f"rank {rank}:\n{worker.output[-4000:]}"


def test_a_killed_worker_and_the_resumed_job(tmp_path):
    ended = failing_job.run(3, "kill", 1, tmp_path)
    assert ended.pop(1).code == SIGKILL
    check_all_blame(ended, PYTHON_ERROR, "rank 1 (localhost) ended without a word")
    assert not (tmp_path / "result.json").exists()

    resumed = failing_job.run(2, "none", 1, tmp_path)  # on fewer workers than before
    assert [worker.code for worker in resumed.values()] == [0, 0]
    assert [cause(worker.output) for worker in resumed.values()] == ["", ""]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"] == [1, 2]
    flat = [pytest.approx(row, abs=1e-5) for row in flatten(result["expected"])]
    assert flatten(result["weights"]) == flat


def flatten(weights):
    kernel, bias = weights
    return [kernel[0][0], bias[0]]


def test_rank_0_killed(tmp_path):
    ended = failing_job.run(2, "kill", 0, tmp_path)
    assert ended.pop(0).code == SIGKILL
    check_all_blame(ended, PYTHON_ERROR, "rank 0 (localhost) ended without a word")


def test_an_exception_on_one_worker(tmp_path):
    ended = failing_job.run(2, "raise", 1, tmp_path)
    check_all_blame(
        ended,
        PYTHON_ERROR,
        "rank 1 (localhost) raised ValueError: a bad row",
        "failure_worker.py",
        'raise ValueError("a bad row")',
    )


def test_a_worker_that_leaves(tmp_path):
    ended = failing_job.run(2, "leave", 1, tmp_path)
    assert ended.pop(1).code == 0
    check_all_blame(ended, PYTHON_ERROR, "rank 1 (localhost) ended the program", REMEDY)


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_stopped_worker(tmp_path, guilty):
    ended = failing_job.run(2, "stop", guilty, tmp_path)
    assert ended.pop(guilty).code is None
    check_all_blame(ended, EXIT_CODE, f"rank {guilty} (localhost) did not answer", "SIGSTOP")


def test_a_worker_that_does_not_call(tmp_path):
    ended = failing_job.run(2, "sleep", 1, tmp_path)
    check_all_blame(
        ended,
        EXIT_CODE,
        "rank 1 (localhost) did not call 'gradients.all_reduce_sum.",
        "for which rank 0 (localhost) waited 7 s",
        "in _sleep: time.sleep(600)",
        "in fit: history = model.fit(",
        REMEDY,
    )
    assert "The job will be ended in" in cause(ended[0].output)  # reported long before


@pytest.mark.parametrize(
    "call, line",
    [
        ("result", "in _result: self.model.metrics[0].result()"),
        ("predict", "in _predict: self.model.predict(X, verbose=0)"),
        ("variable", "in _variable: tf.Variable(1.0)"),
    ],
)
def test_a_collective_call_on_rank_0_only(tmp_path, call, line):
    ended = failing_job.run(2, call, 0, tmp_path)
    check_all_blame(ended, EXIT_CODE, " did not call '", line, "in fit: history =", REMEDY)


def test_a_save_on_rank_0_only_works(tmp_path):
    ended = failing_job.run(2, "save", 0, tmp_path)
    assert [worker.code for worker in ended.values()] == [0, 0]
    assert (tmp_path / "saved.keras").exists()


def test_a_worker_that_never_starts(tmp_path):
    """Horovod itself aborts then; what is missing has been said before."""
    limit = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "15"}
    ended = failing_job.run(2, "none", 0, tmp_path, present=[0], environment=limit)
    assert ended[0].code == SIGABRT
    said = cause(ended[0].output)
    assert "has waited 10 s for all 2 workers to start" in said
    assert "will abort this one 15 s after" in said


def test_horovodruns_own_killing_does_not_hide_the_cause(tmp_path):
    horovodrun = pathlib.Path(sys.executable).with_name("horovodrun")
    worker = [sys.executable, failing_job.WORKER, "kill", "1", tmp_path]
    job = subprocess.run(
        [str(word) for word in (horovodrun, "--gloo", "-np", 2, *worker)],
        env=failing_job.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=failing_job.STARTING,
        check=False,
    )
    assert job.returncode != 0
    said = "rank 0 (localhost): the job ends: rank 1 (localhost) ended without a word"
    assert said in job.stderr, job.stdout + job.stderr
