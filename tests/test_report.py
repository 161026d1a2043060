"""What benchmarks publish: the document says what the committed results say."""

import importlib
import json

import pytest

from benchmarks import report

QUESTIONS = ["congestion_control", "convergence", "cost_model", "datacache", "dense_training", "embedding"]
QUESTIONS += ["end_to_end", "entries", "gradient_communication", "group_collectives", "mstopk", "node_lookup"]
QUESTIONS += ["overlap", "pto", "recipes", "scheduling_2d", "sparse_training"]
# More than a question and its answer:
GUIDES = ["datacache", "embedding", "mstopk", "overlap", "pto", "scheduling_2d"]
# Lines of environments that no run has written: of measurements that were put beside others by hand.
MERGED = {
    "convergence": {
        "read from memory before the run had ended",
        "text, in a run of its own, at",
        "OkTopK and applied=1, in a run of their own, at",
    },
    "sparse_training": {"the 100 rounds with few methods, in a run of their own, at"},
}
DOCUMENTS = {"end_to_end": "results/README"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_document_is_that_of_the_results(question):
    tables = importlib.import_module(f"benchmarks.{question}.tables")
    results = json.loads(report.results_file(question).read_text())
    by_hand = set(results["environment"]) - {*report.environment(), "load average at end"}
    assert by_hand == MERGED.get(question, set())
    document = (report.ROOT / "docs" / f"{DOCUMENTS.get(question, question)}.md").read_text()
    assert report.insert(document, tables.render(results)) == document
    typed = report.insert(document, "")
    assert typed != document  # negative control: there is something generated
    assert question in GUIDES or typed.count("\n") < 40


def test_insert_replaces_what_is_between_the_marks_alone():
    document = f"before {report.BEGIN}\nold\n{report.END} after"
    assert report.insert(document, "new\n") == f"before {report.BEGIN}\nnew\n{report.END} after"
    with pytest.raises(ValueError, match="needs the lines"):
        report.insert("no marks", "new")


def test_numbers_have_three_digits_at_least_and_no_exponent_when_large():
    values = (1066.4, -1066.6, 123.6, 99.96, 12.345, 0.01234, 0.0)
    assert [report.number(x) for x in values] == ["1,066", "-1,067", "124", "100", "12.3", "0.0123", "0"]


def test_spread_is_median_and_quartiles():
    assert report.spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 1e3) == "4,000 (2,500–5,500)"
    assert report.spread([0.25], 2) == "0.5"


def test_sizes():
    assert [report.size(n) for n in (16, 1 << 10, 3 << 20)] == ["16 B", "1 KB", "3 MB"]


def test_a_busy_machine_is_named():
    quiet = {"load average at start": 0.3}
    assert "busy" not in report.environment_line({"environment": quiet})
    assert "busy" in report.environment_line({"environment": {"load average at start": 3.0}})
    assert report.environment()["tensorflow"].startswith("2.")


def test_a_table_has_a_line_per_row():
    assert report.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
