"""Every benchmark's --quick: workers of an emulated cluster are measured, tables are made."""

import os
import subprocess
import sys

import pytest

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces

QUESTIONS = sorted(
    path.parent.name
    for path in (ROOT / "benchmarks").glob("*/main.py")
    if "report.main(" in path.read_text() and path.parent.name != "mstopk"  # which calls Bazel
)


def test_none_is_left_out():
    assert len(QUESTIONS) == 15


@pytest.mark.parametrize("question", QUESTIONS)
def test_quick(question):
    """Prints tables, and publishes nothing."""
    require_namespaces()
    published = ROOT / "benchmarks" / question / "results" / "results.json"
    before = os.stat(published).st_mtime_ns
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{question}.main", "--quick"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "run quick" in result.stdout and "| --- |" in result.stdout
    alarms = ("NOT THE SAME", "WRONG WEIGHTS", "DIFFER for", "WORKERS HOLD DIFFERENT")
    assert not [alarm for alarm in alarms if alarm in result.stdout]
    assert os.stat(published).st_mtime_ns == before
