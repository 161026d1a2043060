"""What one run finds the next one knows, and nothing that is wrong with the file ends a training."""

import json

import pytest

from tf_sparse_strategy.overlap import kept
from tf_sparse_strategy.overlap.trials import Trials


def trials(seconds):
    """That took so long."""
    times = {"cost": 1.5, "dearest": 0.5, "trained": 100.0}
    return Trials(0.01, {"seconds_per_step": {str(size): s for size, s in seconds.items()}, **times})


FACTS = {"variables": [[[3, 4], "float32"]], "nodes": [0, 1]}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TSS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_fastest_is_kept_for_one_training(directory):
    assert kept.read(FACTS) is None
    kept.write(FACTS, trials({1000: 0.5, 2000: 0.25, 3000: 0.75}), done=True)
    found = kept.read(FACTS)
    assert found["done"] and Trials(0.01, found["trials"]).best == 2000
    assert kept.read({**FACTS, "nodes": [0, 0]}) is None
    [file] = (directory / "fusion").iterdir()
    content = json.loads(file.read_text())
    assert content["of"] == FACTS and content["fusion"] == 2000
    kept.write(FACTS, trials({3000: 0.1}), done=False)
    assert kept.read(FACTS) == {"done": False, "trials": trials({3000: 0.1}).record}


DAMAGED = [{}, [], {"-1": 0.5}, {"big": 0.5}, {"1000": -0.5}, {"1000": 0}, {"1000": "fast"}, {"1000": None}]


@pytest.mark.parametrize("seconds", [*DAMAGED, {"1000": float("nan")}, {"1000": float("inf")}])
def test_a_damaged_record_is_not_believed(seconds, caplog):
    kept.write(FACTS, trials({1000: 0.5}), done=True)
    content = json.loads(kept.path(FACTS).read_text())
    content["trials"]["seconds_per_step"] = seconds
    kept.path(FACTS).write_text(json.dumps(content))
    with caplog.at_level("WARNING"):
        assert kept.read(FACTS) is None
    assert caplog.records


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"done": true, "trials": 7}', '{"trials": {}}'])
def test_a_damaged_file_is_not_believed(text, caplog):
    kept.write(FACTS, trials({1000: 0.5}), done=True)
    kept.path(FACTS).write_text(text)
    with caplog.at_level("WARNING"):
        assert kept.read(FACTS) is None
    assert caplog.records


def test_a_directory_that_cannot_be_written(directory, caplog):
    directory.write_text("a file")
    with caplog.at_level("WARNING"):
        kept.write(FACTS, trials({1000: 0.5}), done=True)
    assert "cannot be kept" in caplog.text


def test_the_usual_place(monkeypatch, tmp_path):
    monkeypatch.delenv("TSS_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept.path(FACTS).parent == tmp_path / ".cache" / "tf_sparse_strategy" / "fusion"
