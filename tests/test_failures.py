"""A worker of a real job ends: every other one ends, soon, with the cause; the job can resume."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests import failing_job

SIGKILL, EXIT_CODE = -9, 75


def test_a_killed_worker_and_the_resumed_job(tmp_path):
    ended = failing_job.run(3, "kill", 1, tmp_path)
    assert ended.pop(1).code == SIGKILL
    failing_job.check_all_blame(ended, failing_job.PYTHON_ERROR, "rank 1 (localhost) ended without a word")
    assert not (tmp_path / "result.json").exists()

    resumed = failing_job.run(2, "none", 1, tmp_path)  # on fewer workers than before
    assert [worker.code for worker in resumed.values()] == [0, 0]
    assert [worker.cause for worker in resumed.values()] == ["", ""]
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
    failing_job.check_all_blame(ended, failing_job.PYTHON_ERROR, "rank 0 (localhost) ended without a word")


@pytest.mark.parametrize("fault", ["raise", "raise_before_a_quick_exit"])
def test_an_exception_on_one_worker(fault, tmp_path):
    ended = failing_job.run(2, fault, 1, tmp_path)
    failing_job.check_all_blame(
        ended,
        failing_job.PYTHON_ERROR,
        "rank 1 (localhost) raised ValueError: a bad row",
        "failure_worker.py",
        'raise ValueError("a bad row")',
    )


@pytest.mark.parametrize(
    "fault, said",
    [
        ("raise_beside_a_thread", "rank 1 (localhost) raised ValueError: a bad row"),
        ("kill_before_a_child", "rank 1 (localhost) ended without a word"),
    ],
)
def test_what_outlives_a_worker_does_not_hide_its_end(tmp_path, fault, said):
    """A thread that Python waits for before it ends, and a child that has the worker's connections."""
    ended = failing_job.run(2, fault, 1, tmp_path)
    guilty, other = ended[1], ended[0]
    assert guilty.code == (SIGKILL if "kill" in fault else EXIT_CODE)
    assert other.code in (failing_job.PYTHON_ERROR, EXIT_CODE) and other.seconds < 30
    assert said in other.cause, other.output[-4000:]


def test_a_worker_that_leaves(tmp_path):
    ended = failing_job.run(2, "leave", 1, tmp_path)
    assert ended.pop(1).code == 0
    words = "rank 1 (localhost) ended the program", failing_job.REMEDY
    failing_job.check_all_blame(ended, failing_job.PYTHON_ERROR, *words)


def test_an_error_that_all_programs_handle_themselves(tmp_path):
    """And end with a code; one of them alone knows why."""
    ended = failing_job.run(2, "handled", 1, tmp_path)
    assert ended.pop(1).code == 3
    said = "rank 1 (localhost) ended the program with exit code 3 after ValueError: a bad row"
    failing_job.check_all_blame(ended, 3, said, "failure_worker.py")


def test_an_error_before_an_exit_that_takes_long(tmp_path):
    """What the program has registered for its end runs before ours."""
    ended = failing_job.run(2, "raise_before_a_long_exit", 1, tmp_path)
    assert ended[1].code == EXIT_CODE
    assert ended[0].code in (failing_job.PYTHON_ERROR, EXIT_CODE)
    for worker in ended.values():
        assert "rank 1 (localhost) raised ValueError: a bad row" in worker.cause, worker.output[-4000:]
        assert worker.seconds < 30


def test_a_save_on_rank_0_only_works(tmp_path):
    ended = failing_job.run(2, "save", 0, tmp_path)
    assert [worker.code for worker in ended.values()] == [0, 0]
    assert (tmp_path / "saved.keras").exists()


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
