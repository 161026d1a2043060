"""The same failures between machines: two nodes of netlab, and a cable that is pulled."""

import re
import sys
import time

import pytest

from tests import failing_job
from tests.lab_help import require_namespaces
from tests.thorough import thorough
from tf_sparse_strategy.cluster import Netlab
from tf_sparse_strategy.watchdog import EXIT_CODE

PYTHON_ERROR, KILLED = 1, 137


@pytest.fixture
def lab():
    require_namespaces()
    with Netlab(nodes=2, local=1, rate="1gbit") as lab:
        yield lab


def program(fault, tmp_path):
    return [sys.executable, str(failing_job.WORKER), fault, "1", str(tmp_path)]


def check_blame(rank, code, *words):
    assert (rank.exit_code, rank.ended_by_itself) == (code, True), rank.stderr[-4000:]
    said = "\n".join(re.findall(r"^tf_sparse_strategy, rank \d \(node\d\): (.*)$", rank.stderr, re.M))
    for word in words:
        assert word in said, rank.stderr[-4000:]


def test_a_node_cut_off(lab, tmp_path):
    """Each side says of the other that its machine does not answer; both end within a minute."""
    with lab.start(program("linger", tmp_path), failing_job.ENVIRONMENT) as job:
        deadline = time.monotonic() + failing_job.STARTING
        while not (tmp_path / "lingering").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        lab.cut(1)
        deadline = time.monotonic() + 60
        while job.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        job.end()
        ranks = job.results()
    for rank, other in zip(ranks, reversed(ranks), strict=True):
        words = f"rank {other.rank} (node{other.rank}) did not answer for "
        check_blame(rank, EXIT_CODE, words, " s, nor does the machine")


@thorough
def test_a_killed_worker(lab, tmp_path):
    result = lab.run(program("kill", tmp_path), failing_job.ENVIRONMENT, grace=60)
    assert result.ranks[1].exit_code == KILLED
    check_blame(result.ranks[0], PYTHON_ERROR, "rank 1 (node1) ended without a word")


@thorough
def test_a_stopped_worker(lab, tmp_path):
    result = lab.run(program("stop", tmp_path), failing_job.ENVIRONMENT, grace=0)
    check_blame(
        result.ranks[0],
        EXIT_CODE,
        "rank 1 (node1) did not answer for ",
        "though the machine does",
    )
    assert not result.ranks[1].ended_by_itself
