"""The largest speed-up that hiding can give, what the tables say, and runs that were interrupted."""

import contextlib
import json

import pytest

from benchmarks import continuing
from benchmarks.overlap import main
from benchmarks.overlap.names import ALONE, GATHER_LAST, TUNED
from benchmarks.overlap.tables import largest_speedup, render
from benchmarks.report import environment


def test_communication_that_takes_no_time_costs_nothing():
    assert largest_speedup(0.1, 10**6, 8, alpha=0, beta=0) == pytest.approx(8)


def test_what_fits_behind_forward_and_backward_costs_nothing():
    assert largest_speedup(0.1, 10**6, 4, alpha=0, beta=0.1 / (3 * 0.25 * 10**6)) == pytest.approx(4)


def test_by_equation_6():
    """P (t_ff + t_bp) / (t_ff + t_bp + t_ar - min(t_rs, t_bp) - min(t_ag, t_ff))."""
    forward, nbytes, workers, alpha, beta = 0.1, 2_000_000, 4, 1e-3, 1e-7
    half = 3 * (alpha + nbytes * beta / 4)
    assert forward < half < 2 * forward
    total = 3 * forward + 2 * half - half - forward
    speedup = largest_speedup(forward, nbytes, workers, alpha, beta)
    assert speedup == pytest.approx(workers * 3 * forward / total)


def job(**changes) -> dict:
    """Of one model, measured: an all-reduce that backpropagation hides."""
    ours = {"DeAR, not fused": [0.9, 0.9], TUNED: [0.8, 0.82]}
    found = {
        "workers": 4,
        "rate": 200e6,
        "links": {"cross_alpha": 1e-4, "cross_beta": 4.2e-8},
        "bytes": 5_320_000,
        "forward": 0.25,
        "trials": {"26214400": 0.85, "1000000": 0.8},
        "weights": {GATHER_LAST: [1.0, 2.0], TUNED: [1.0, 2.0], ALONE: [1.0, 3.0]},
        "seconds": {**ours, GATHER_LAST: [1.0, 1.0], ALONE: [0.75, 0.75]},
    }
    return found | changes


def rendered(**changes) -> str:
    job_name = "cnn, 4 workers, 220mbit"
    results = {"environment": environment(), "planned": [job_name], "jobs": {job_name: job()}}
    return render(results | changes)


def test_what_is_missing_is_said():
    assert "Left out" not in rendered()
    text = rendered(planned=["cnn, 4 workers, 220mbit", "lm, 8 workers, 110mbit"])
    assert "**Left out, as the run was interrupted:** lm, 8 workers, 110mbit." in text


def test_goals_depend_on_whether_communication_binds():
    assert "less time than backpropagation: at most 2% behind: reached" in rendered()
    ahead = "more time than backpropagation: ahead: "
    slow = job(rate=50e6)
    assert ahead + "reached" in rendered(jobs={"x": slow})
    slow["seconds"] = {**slow["seconds"], GATHER_LAST: [0.8, 0.8]}
    assert ahead + "missed" in rendered(jobs={"x": slow})
    assert "100% of the fastest DeAR's speed (goal 98%: reached)" in rendered()


def test_wrong_weights_are_said():
    assert "all hold the same weights" in rendered()
    wrong = job(weights={GATHER_LAST: [1.0, 2.0], TUNED: [1.0, 2.1], ALONE: [1.0, 3.0]})
    assert f"WRONG WEIGHTS: {TUNED}" in rendered(jobs={"x": wrong})


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """What it has kept is not measured again, unless the code is another one."""
    file, measured = tmp_path / "results" / "results.json", []

    def jobs(lab, models, rounds, tapes):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(lab)
        return {model: {"seconds": {}} for model in models}

    monkeypatch.setattr(main, "Netlab", lambda *cluster: contextlib.nullcontext(cluster))
    monkeypatch.setattr(main, "_jobs", jobs)
    with pytest.raises(KeyboardInterrupt):
        main.measure(False, file)
    kept = json.loads(file.read_text())
    assert len(kept["jobs"]) == 2 * len(main.MODELS)
    assert kept["planned"] != list(kept["jobs"])
    first, measured[:] = measured[:], []
    found = main.measure(False, file)
    assert measured == [cluster for cluster in [(w, 1, r) for w, r in main.CLUSTERS] if cluster not in first]
    assert sorted(found["jobs"]) == sorted(found["planned"])
    measured[:] = []
    monkeypatch.setattr(continuing, "_code", lambda: "other")
    with pytest.raises(KeyboardInterrupt):
        main.measure(False, file)
    assert len(measured) == 2
