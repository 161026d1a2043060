"""What one run finds the next one knows, and nothing that is wrong with the file ends a training."""

import json

import pytest

from tf_sparse_strategy.overlap import kept

FACTS = {"variables": [[[3, 4], "float32"]], "nodes": [0, 1]}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TSS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_fastest_is_kept_for_one_training(directory):
    assert kept.read(FACTS) is None
    kept.write(FACTS, {1000: 0.5, 2000: 0.25, 3000: 0.75})
    assert kept.read(FACTS) == 2000
    assert kept.read({**FACTS, "nodes": [0, 0]}) is None
    [file] = (directory / "fusion").iterdir()
    content = json.loads(file.read_text())
    assert content["of"] == FACTS and content["seconds_per_step"]["3000"] == 0.75
    kept.write(FACTS, {3000: 0.1})
    assert kept.read(FACTS) == 3000


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fusion": -1}', '{"fusion": "big"}', '{"fusion": true}'])
def test_a_damaged_file_is_not_believed(text, caplog):
    kept.write(FACTS, {1000: 0.5})
    kept.path(FACTS).write_text(text)
    with caplog.at_level("WARNING"):
        assert kept.read(FACTS) is None
    assert caplog.records


def test_a_directory_that_cannot_be_written(directory, caplog):
    directory.write_text("a file")
    with caplog.at_level("WARNING"):
        kept.write(FACTS, {1000: 0.5})
    assert "cannot be kept" in caplog.text


def test_the_usual_place(monkeypatch, tmp_path):
    monkeypatch.delenv("TSS_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept.path(FACTS).parent == tmp_path / ".cache" / "tf_sparse_strategy" / "fusion"
