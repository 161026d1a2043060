"""A worker of a real job does not come: the others end at the limit, and say for whom they waited and why."""

import pytest

from tests import failing_job
from tests.thorough import thorough
from tf_sparse_strategy.watchdog import EXIT_CODE

SIGABRT = -6


@pytest.mark.parametrize("guilty", [0, pytest.param(1, marks=thorough)])
def test_a_stopped_worker(tmp_path, guilty):
    ended = failing_job.run(2, "stop", guilty, tmp_path)
    assert ended.pop(guilty).code is None
    failing_job.check_all_blame(ended, EXIT_CODE, f"rank {guilty} (localhost) did not answer", "SIGSTOP")


def test_a_worker_that_does_not_call(tmp_path):
    ended = failing_job.run(2, "sleep", 1, tmp_path)
    failing_job.check_all_blame(
        ended,
        EXIT_CODE,
        "rank 1 (localhost) did not call 'gradients.all_reduce_sum.",
        "for which rank 0 (localhost) waited ",
        "in _sleep: time.sleep(600)",
        "in fit: history = model.fit(",
        failing_job.REMEDY,
    )
    assert "The job will be ended in" in ended[0].cause  # reported long before


@pytest.mark.parametrize(
    "call, line",
    [
        ("result", "in _result: self.model.metrics[0].result()"),
        ("predict", "in _predict: self.model.predict(X, verbose=0)"),
        pytest.param("variable", "in _variable: tf.Variable(1.0)", marks=thorough),
    ],
)
def test_a_collective_call_on_rank_0_only(tmp_path, call, line):
    ended = failing_job.run(2, call, 0, tmp_path)
    words = " did not call '", line, "in fit: history =", failing_job.REMEDY
    failing_job.check_all_blame(ended, EXIT_CODE, *words)


def test_a_worker_that_never_starts(tmp_path):
    """Horovod itself aborts then; what is missing has been said before."""
    limit = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "15"}
    ended = failing_job.run(2, "none", 0, tmp_path, present=[0], environment=limit)
    assert ended[0].code == SIGABRT
    said = ended[0].cause
    assert "has waited 10 s for all 2 workers to start" in said
    assert "will abort this one 15 s after" in said
