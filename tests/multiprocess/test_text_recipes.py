"""GNMT, the Transformer and BERT on two workers: they learn from a small text, and report."""

import dataclasses

import pytest

from examples.text import training
from tests.multiprocess import text_runs


@pytest.fixture
def strategies(monkeypatch):
    """Those that programs start."""
    start, made = training.start, []

    def noted(*args, **kwargs):
        made.append(start(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(training, "start", noted)
    return made


@pytest.mark.parametrize("name", text_runs.NAMES)
def test_it_learns_and_reports(name, tmp_path, topology, capsys, strategies):
    """GNMT with DeAR, although it clips one norm of all; the Transformer, unclipped, with delayed rows."""
    program, settings = text_runs.short(name, tmp_path)
    overlap = "dear" if name == "gnmt" else "none"
    settings = dataclasses.replace(settings, overlap=overlap, delay_rows=name == "transformer")
    code = program(settings)
    printed = capsys.readouterr()
    assert ("held-out" in printed.out) == (topology.rank == 0)
    assert code == 0, printed.err
    [strategy] = strategies
    places = strategy.extended.collectives.sites.sites()
    sent = {place.split(".")[0] for place, (calls, *_) in places if calls}
    assert "embedding_rows" in sent
    assert ("embedding_delayed" in sent) == (name == "transformer")
