"""GNMT, the Transformer and BERT on two workers: they learn from a small text, and report."""

import dataclasses

import pytest

from examples.text import training
from examples.transformer import train as transformer
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


def test_2d_scheduling_changes_no_sums(tmp_path, strategies):
    """The Transformer: DeAR for its dense parts, delayed rows for its tables, against neither."""
    _, settings = text_runs.short("transformer", tmp_path)
    settings = dataclasses.replace(settings, epochs=1)
    losses = []
    for overlap, delay in (("none", False), ("dear", True)):
        both = dataclasses.replace(settings, overlap=overlap, delay_rows=delay)
        strategy = training.start(both, delay_rows=delay)
        losses.append(transformer.train(both, strategy).held_out["loss"])
    plain, scheduled = (strategy.extended for strategy in strategies)
    assert plain.chunked is None and plain.delayed is None
    assert scheduled.chunked is not None and scheduled.delayed is not None
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
