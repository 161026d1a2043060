"""Short runs of the text recipes: tiny sizes, on some of Python's language reference."""

import dataclasses
import pathlib
from collections.abc import Callable

from examples.bert import config as bert_config
from examples.bert import main as bert
from examples.gnmt import config as gnmt_config
from examples.gnmt import main as gnmt
from examples.text.settings import TextSettings
from examples.transformer import config as transformer_config
from examples.transformer import main as transformer
from tests import small_texts

# Program, recipe, and what two epochs reach of the tiny sizes: perplexities from 500, and an accuracy.
_RECIPES = {
    "gnmt": (gnmt.program, gnmt_config.RECIPES["laptop"], 170.0),
    "transformer": (transformer.program, transformer_config.RECIPES["laptop"], 170.0),
    "bert": (bert.program, bert_config.RECIPES["laptop"], 0.06),
}
NAMES = list(_RECIPES)


def short(name: str, directory: pathlib.Path, **sizes) -> tuple[Callable[[TextSettings], int], TextSettings]:
    """A recipe's program and the settings of two epochs; `sizes` are those of the texts."""
    program, recipe, goal = _RECIPES[name]
    texts = small_texts.write(directory, **sizes)
    settings = dataclasses.replace(
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
    return program, settings
