"""GNMT, the Transformer and BERT on two workers: they learn from a small text, and resume."""

import dataclasses

import pytest

from examples.bert import config as bert_config
from examples.bert import main as bert
from examples.bert import train as bert_train
from examples.gnmt import config as gnmt_config
from examples.gnmt import main as gnmt
from examples.gnmt import train as gnmt_train
from examples.transformer import config as transformer_config
from examples.transformer import main as transformer
from examples.transformer import train as transformer_train
from tests import small_texts
from tests.multiprocess import cut_runs

# Program, recipe, and what two epochs reach of the tiny sizes: perplexities from 500, an accuracy from 1/24.
RECIPES = {
    "gnmt": (gnmt.program, gnmt_config.RECIPES["laptop"], 170.0),
    "transformer": (transformer.program, transformer_config.RECIPES["laptop"], 170.0),
    "bert": (bert.program, bert_config.RECIPES["laptop"], 0.06),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """From a recipe to a short run on some of Python's language reference."""
    directory = tmp_path_factory.mktemp("text")
    texts = small_texts.write(directory)

    def settings(name):
        _, recipe, goal = RECIPES[name]
        return dataclasses.replace(
            recipe,
            size="tiny",
            epochs=2,
            global_batch_size=32,
            learning_rate=1e-2,
            text=texts["lines" if name == "bert" else "pairs"],
            output_dir=str(directory / "logs"),
            goal=goal,
            check=True,
        )

    return settings


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_and_reports(name, small, comm, topology, capsys):
    program, *_ = RECIPES[name]
    code = program(small(name))
    printed = capsys.readouterr()
    assert ("held-out" in printed.out) == (topology.rank == 0)
    assert code == 0, printed.err


@pytest.mark.parametrize(
    "recipe", [gnmt_train, transformer_train, bert_train], ids=["gnmt", "transformer", "bert"]
)
def test_a_run_that_was_cut_off_goes_on(recipe, small, shared_tmp):
    name = recipe.__name__.split(".")[1]
    whole, resumed = cut_runs.whole_and_resumed(recipe.train, small(name), shared_tmp / name)
    assert len(resumed.history["loss"]) == 1
    assert resumed.held_out == whole.held_out
