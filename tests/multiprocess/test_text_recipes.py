"""GNMT, the Transformer and BERT on two workers: they learn from a small text, and report."""

import dataclasses

import keras
import pytest

from examples.bert import train as bert
from examples.gnmt import train as gnmt
from examples.text import training, translation, zipf
from examples.transformer import train as transformer
from examples.transformer.model import SIZES
from tests.multiprocess import text_runs
from tests.thorough import thorough_if

TRAIN = {"gnmt": gnmt.train, "transformer": transformer.train, "bert": bert.train}


@pytest.fixture
def strategies(monkeypatch):
    """Those that programs start."""
    start, made = training.start, []

    def noted(*args, **kwargs):
        made.append(start(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(training, "start", noted)
    return made


class Optimizers(keras.callbacks.Callback):
    """What the optimizer says after each epoch: its steps, and whether norms are divided."""

    def __init__(self):
        super().__init__()
        self.steps, self.decisions = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.steps.append(int(self.model.optimizer.iterations.numpy()))
        self.decisions.append(getattr(self.model.optimizer, "parallel_decision", None))


def sent(strategy):
    """Purposes of the collectives that have been called."""
    places = strategy.extended.collectives.sites.sites()
    return {place.split(".")[0] for place, (calls, *_) in places if calls}


@pytest.mark.parametrize("name", text_runs.NAMES)
def test_it_learns_and_reports(name, tmp_path, topology, capsys, strategies):
    """GNMT with DeAR, although it clips one norm of all, and so delays no rows; the others, unclipped, do."""
    program, settings = text_runs.short(name, tmp_path)
    clips = name == "gnmt"
    settings = dataclasses.replace(
        settings,
        overlap="dear" if clips else "none",
        clip=settings.clip if clips else None,
        delay_rows=True,
    )
    assert (settings.clip is not None) == clips
    code = program(settings)
    printed = capsys.readouterr()
    assert ("held-out" in printed.out) == (topology.rank == 0)
    assert code == 0, printed.err
    [strategy] = strategies
    assert "embedding_rows" in sent(strategy)
    assert ("embedding_delayed" in sent(strategy)) != clips


@pytest.mark.parametrize("name", thorough_if(lambda name: name != "bert", text_runs.NAMES))
def test_2d_scheduling_changes_no_sums(name, tmp_path, strategies):
    """DeAR for dense parts, delayed rows for tables, against neither."""
    _, settings = text_runs.short(name, tmp_path, lines=1600)
    settings = dataclasses.replace(settings, epochs=1, clip=None)
    losses = []
    for overlap, delay in (("none", False), ("dear", True)):
        both = dataclasses.replace(settings, overlap=overlap, delay_rows=delay)
        strategy = training.start(both, delay_rows=delay)
        losses.append(TRAIN[name](both, strategy).held_out["loss"])
    plain, scheduled = strategies
    assert plain.extended.chunked is None and "embedding_delayed" not in sent(plain)
    assert scheduled.extended.chunked is not None and "embedding_delayed" in sent(scheduled)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_samples_grow_by_phases(tmp_path):
    """Each length has as many steps as sentences are short enough; the test is of the last one's."""
    _, settings = text_runs.short("transformer", tmp_path)
    size = SIZES[settings.size]
    data = translation.loader(settings, size.vocabulary, size.length, zipf.TRANSFORMER)
    short, long = (len(data(length)[0]) // settings.global_batch_size for length in (6, 12))
    assert 0 < short < long
    settings = dataclasses.replace(settings, phases=((6, 1), (12, 1)))
    noted = Optimizers()
    result = transformer.train(settings, training.start(settings), [noted])
    assert noted.steps == [short, short + long]
    assert result.history["epoch"] == [1, 2]
    assert result.held_out["perplexity"] == pytest.approx(result.history["val_perplexity"][1])
    with pytest.raises(ValueError, match="of 12 words at most"):
        longer = dataclasses.replace(settings, phases=((13, 2),))
        transformer.train(longer, training.start(longer))


def test_lamb_divides_its_norms(tmp_path):
    _, settings = text_runs.short("bert", tmp_path, lines=800)
    settings = dataclasses.replace(settings, optimizer="lamb", sharded_embedding=False, pto="on")
    noted = Optimizers()
    result = bert.train(settings, training.start(settings), [noted])
    assert result.history["loss"][1] < result.history["loss"][0]
    assert [decision.divide for decision in noted.decisions] == [True, True]
