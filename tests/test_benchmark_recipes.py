"""What the recipes print, and the tables of it."""

import pytest

from benchmarks.recipes import runs, tables
from benchmarks.report import environment
from examples.common import report

PRINTED = """Epoch 10/10
workers            2
samples/s          1,234.5
bytes on the wire  62,208 per step, all workers together
memory             0.7 GiB at most, this worker
test accuracy      97.50%
"""
RUN = {"figure": 0.975, "samples/s": 1234.5, "bytes": 62208.0, "GiB": 0.7}


def test_figures_are_what_was_printed():
    assert runs.figures(PRINTED, "test accuracy") == RUN
    assert runs.figures(PRINTED.replace("97.50%", "1,147.3"), "test accuracy")["figure"] == 1147.3


def test_a_run_that_did_not_end_is_an_error():
    with pytest.raises(ValueError, match="no line 'memory'"):
        runs.figures(PRINTED.replace("memory", "other"), "test accuracy")


def test_lines_are_those_of_the_recipes(capsys):
    class OneWorker:
        class topology:
            num_workers = 1

    rows = report.speed_and_bytes(OneWorker, {"samples_per_second": [1.0, 2.0], "bytes_per_step": [8]})
    report.show({**rows, "held-out perplexity": f"{1234.5:,.3f}"})
    found = runs.figures(capsys.readouterr().out, "held-out perplexity")
    assert (found["figure"], found["samples/s"], found["bytes"]) == (1234.5, 2.0, 8.0)


def test_tables():
    several = [run | {"seconds": 20.0} for run in (RUN, RUN | {"figure": 0.965})]
    job = {"figure": "test accuracy", "alone": RUN | {"seconds": 10.0}, "several": several}
    results = {"environment": environment(), "cluster": "2 nodes", "planned": ["digits", "bert"]}
    text = tables.render(results | {"jobs": {"digits": job}})
    assert "| `digits` | test accuracy | 97.5% | 10 | 1,234 | 0.7 |" in text
    assert "| `digits` | test accuracy | 97 ± 0.707% | 20 (20–20) | 1,234 | 0.7 | 0.0622 |" in text
    worse = job | {"figure": "held-out perplexity", "alone": RUN | {"figure": 1147.3, "seconds": 10.0}}
    assert "| held-out perplexity | 1,147 |" in tables.render(results | {"jobs": {"lm": worse}})
    assert "**Left out, as the run was interrupted:** bert." in text
