"""The end-to-end report, from made-up measurements."""

import pytest

from benchmarks.end_to_end import figures, page, projection, tables
from benchmarks.end_to_end.main import MODELS, RESULTS
from benchmarks.end_to_end.names import ALONE, AUTO, CODED, DENSE, HITOPK, HOROVOD, SHARDED, TORUS
from benchmarks.report import environment
from benchmarks.scheduling_2d.settings import GATHERED, WITHOUT

LINKS = {"local_alpha": 1e-5, "local_beta": 1e-9, "cross_alpha": 1e-4, "cross_beta": 4e-8, "phase": 2e-3}
LINKS |= {"selection": 0.0, "exchange": 0.0}


def job(**changes) -> dict:
    """1 s of computation; dense ways take 5 s and 4 s, the best sparse one 2 s."""
    seconds = {ALONE: [1.0], HOROVOD: [5.0], DENSE: [4.0], HITOPK: [3.0, 2.0, 1.0], AUTO: [2.2]} | changes
    return {
        "parameters": 10**6,
        "computation": 0.9,
        "links": LINKS,
        "seconds": seconds,
        "sent": {DENSE: [4_000_000, 3_000_000]},
        "parts": {
            DENSE: {"whole": 4.0, "communicating": 3.25, "gradients.all_reduce_sum": 3.5},
            HITOPK: {"whole": 2.0, "communicating": 0.5},
        },
        "sums": {DENSE: [3.0], TORUS: [2.0], HITOPK: [0.8], SHARDED: [1.0]},
        "predicted": {DENSE: 2.0, TORUS: 2.0, HITOPK: 1.0, SHARDED: 1.0},
        "selection": {HITOPK: 1e-8, SHARDED: 3e-8},
        "computed": {DENSE: 0.0, HITOPK: 0.01, SHARDED: 0.03},
    }


def results(**changes) -> dict:
    return {
        "environment": environment(),
        "cluster": "4 nodes of 2 workers",
        "workers": 8,
        "rate": 200e6,
        "rows": 4,
        "density": 0.01,
        "accuracy": 0.95,
        "jobs": {"VGG-like": job(**changes)},
        "learning": {
            DENSE: [[[10.0, 0.5, 0.9], [20.0, 0.1, 0.96]], [[12.0, 0.5, 0.97], [24.0, 0.1, 0.98]]],
            HITOPK: [[[1.0, 0.6, 0.8], [2.0, 0.2, 0.94]], [[1.0, 0.6, 0.8], [2.0, 0.2, 0.96]]],
        },
    }


def scheduled() -> dict:
    """Of the benchmark of 2D scheduling."""
    job = {"words": 600, "seconds": {WITHOUT: [2.0]}, "horovod": {GATHERED: [4.0]}}
    return {"environment": environment(), "jobs": {"lm": job}}


def test_exact_ways_must_learn_alike():
    curves = results()["learning"] | {HOROVOD: [[[9.0, 0.5000001, 0.9]], [[9.0, 0.5, 0.9]]]}
    tables.check_alike(curves)  # whatever sparse ones, and later epochs, are
    curves[HOROVOD][1][0][1] = 0.51
    with pytest.raises(RuntimeError, match=r"different losses, \[0.51, 0.5\]"):
        tables.check_alike(curves)


def test_efficiency_and_what_is_exposed():
    assert tables.efficiency(job(), DENSE) == 0.25
    assert tables.exposed(job(), DENSE) == 3.0
    assert tables.exposed(job(**{DENSE: [0.9]}), DENSE) == 0.0  # noise


def test_the_goal_is_of_models_that_communication_binds():
    assert "HiTopK does 2.00 times the steps of the best dense way, Dense (goal 1.25: reached)" in (
        tables.verdict("m", job())
    )
    assert "goal 1.25: missed" in tables.verdict("m", job(**{HITOPK: [3.9], AUTO: [3.9]}))
    assert "computation takes more than half" in tables.verdict("m", job(**{DENSE: [1.9]}))


def test_the_goal_is_not_reached_by_a_way_that_learns_less():
    text = tables.verdict("m", job(**{HITOPK: [3.9], AUTO: [3.9], SHARDED: [1.0]}))
    assert "goal 1.25: missed" in text and "the fastest sparse way, ShardedTopK, 4.00 times" in text


def test_seconds_until_an_accuracy():
    text = tables.learned(results()["learning"], 0.95)
    dense, sparse = text.splitlines()[2:]
    assert dense.startswith("| Dense | 16 ± 5.66 | 22 ±")
    assert sparse.startswith("| HiTopK | never: 1 of 2 |")


def test_a_step_by_phase():
    dense, sparse = tables.breakdown(job()).splitlines()[2:]
    assert dense == "| Dense | 4 | 0.9 | 0.1 |  | 3.25 | 3.5 |"
    assert sparse == "| HiTopK | 2 | 0.9 | 0.1 | 0.01 | 0.5 |  |"


def test_accuracy_may_be_two_points_behind():
    curves = results()["learning"]
    curves[HITOPK][0][-1][2] = 0.95  # the ends' means are 97 and 95.5
    assert "HiTopK is 1.5 points behind Dense (goal 2 at most: reached)" in tables.accuracy_verdict(curves)
    curves[HITOPK][0][-1][2] = 0.93
    assert "2.5 points behind Dense (goal 2 at most: missed)" in tables.accuracy_verdict(curves)


def test_a_projection_knows_its_rate_and_its_errors():
    links = projection.links_of(LINKS, 200e6)
    assert links.cross_beta == pytest.approx(LINKS["cross_beta"] / 125)
    assert links.phase == LINKS["phase"]
    assert projection.errors({"a": job()}) == {DENSE: [1.5], TORUS: [1.0], HITOPK: [0.8], SHARDED: [1.0]}
    slower = job() | {"links": LINKS | {"phase": 4e-3}}
    assert projection.middle({"a": job(), "b": slower}, "links")["phase"] == pytest.approx(3e-3)
    found = projection.seconds(links, {HITOPK: 1e-8, SHARDED: 3e-8}, 0.01)["128 nodes of 8 workers"]
    none = projection.seconds(links, {}, 0.01)["128 nodes of 8 workers"]
    n = projection.ELEMENTS["VGG-19"] / 8
    assert found["VGG-19"][HITOPK] - none["VGG-19"][HITOPK] == pytest.approx(1e-8 * n, rel=1e-3)
    assert found["VGG-19"][SHARDED] - none["VGG-19"][SHARDED] == pytest.approx(3e-8 * n, rel=1e-3)
    assert set(found["VGG-19"]) == {DENSE, TORUS, HITOPK, SHARDED}
    assert found["VGG-19"][DENSE] > found["ResNet-50"][DENSE] > 0


def test_the_report_is_complete_and_becomes_a_page(tmp_path):
    text = tables.render(results(), scheduled())
    measured = "| measured / predicted | 1.50–1.50 | 1.00–1.00 | 0.80–0.80 |"
    assert text.count(measured) == 1
    for said in ("4 nodes of 2 workers, 200 Mbit/s", "A projection, not a measurement", measured):
        assert said in text
    assert CODED not in text  # was not measured
    figures.speed(results(), tmp_path / "speed.svg")
    figures.learning(results(), tmp_path / "learning.svg")
    html = page.html(text, tmp_path)
    assert html.count("<svg") == 2 and "<img" not in html
    assert html.count("<table>") == text.count("| --- |")


def test_the_same_measurements_are_drawn_as_the_same_file(tmp_path):
    for name in ("once.svg", "again.svg"):
        figures.learning(results(), tmp_path / name)
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()


def test_tables_of_2d_scheduling_are_in_the_report():
    assert "| lm |  | 150 (1.00) | 300 (2.00) |" in tables.render(results(), scheduled())


def test_a_projection_assumes_faster_links_in_a_node():
    text = tables.projected(results())
    assert text.count("16 nodes of 8 workers") == 2 and "at 12 GB/s (PCIe 3.0 x16): assumed" in text


def test_the_published_page_is_of_the_published_report():
    """Which says no more than what was measured (tests/test_report.py), and what became of each goal."""
    text = (RESULTS / "README.md").read_text()
    assert page.html(text, RESULTS) == (RESULTS / "report.html").read_text()
    of_computation = text.count("its computation takes more than half")  # and so has no goal
    assert text.count("(goal ") == 1 + len(MODELS) - of_computation > 1
