"""GNMT, the Transformer and BERT on two workers: they learn from a small text."""

import dataclasses
import pydoc_data.topics

import pytest

from examples.bert import config as bert_config
from examples.bert import main as bert
from examples.gnmt import config as gnmt_config
from examples.gnmt import main as gnmt
from examples.text import corpus
from examples.transformer import config as transformer_config
from examples.transformer import main as transformer

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
    lines = [line for text in pydoc_data.topics.topics.values() for line in text.splitlines()]
    short = [line for line in lines if 3 < len(corpus.tokens(line)) < 12][:1_500]
    (directory / "pairs").write_text("\n".join(f"{line}\t{line}" for line in short), "utf-8")
    (directory / "lines").write_text("\n".join(lines[:4_000]), "utf-8")

    def settings(name):
        _, recipe, goal = RECIPES[name]
        return dataclasses.replace(
            recipe,
            size="tiny",
            epochs=2,
            global_batch_size=32,
            learning_rate=1e-2,
            text=str(directory / ("lines" if name == "bert" else "pairs")),
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
