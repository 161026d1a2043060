"""GNMT, the Transformer and BERT on two workers: they learn from a small text, and resume."""

import dataclasses

import pytest

from examples.bert import config as bert_config
from examples.bert import main as bert
from examples.bert import train as bert_train
from examples.gnmt import config as gnmt_config
from examples.gnmt import main as gnmt
from examples.transformer import config as transformer_config
from examples.transformer import main as transformer
from tests import small_texts
from tests.multiprocess import cut_runs

# Program, recipe, and what two epochs reach of the tiny sizes: perplexities from 500, an accuracy from 1/24.
RECIPES = {
    "gnmt": (gnmt.program, gnmt_config.RECIPES["laptop"], 170.0),
    "transformer": (transformer.program, transformer_config.RECIPES["laptop"], 170.0),
    "bert": (bert.program, bert_config.RECIPES["laptop"], 0.06),
}


@pytest.fixture
def short(tmp_path):
    """From a recipe to a short run on some of Python's language reference."""

    def settings(name, **sizes):
        _, recipe, goal = RECIPES[name]
        texts = small_texts.write(tmp_path, **sizes)
        return dataclasses.replace(
            recipe,
            size="tiny",
            epochs=2,
            global_batch_size=32,
            learning_rate=1e-2,
            text=texts["lines" if name == "bert" else "pairs"],
            output_dir=str(tmp_path / "logs"),
            goal=goal,
            check=True,
        )

    return settings


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_and_reports(name, short, comm, topology, capsys):
    program, *_ = RECIPES[name]
    code = program(short(name))
    printed = capsys.readouterr()
    assert ("held-out" in printed.out) == (topology.rank == 0)
    assert code == 0, printed.err


def test_a_run_that_was_cut_off_goes_on(short, shared_tmp):
    """One of them, for all: what trains and resumes is theirs in common."""
    settings = short("bert", lines=800)
    whole, resumed = cut_runs.whole_and_resumed(bert_train.train, settings, shared_tmp)
    assert len(resumed.history["loss"]) == 1
    assert resumed.held_out == whole.held_out
