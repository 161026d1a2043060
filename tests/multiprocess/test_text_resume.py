"""GNMT, the Transformer and BERT go on after they were cut off as if they had not been."""

import pytest

from examples.bert import train as bert
from examples.gnmt import train as gnmt
from examples.transformer import train as transformer
from tests.multiprocess import cut_runs, text_runs


@pytest.mark.parametrize("recipe", [gnmt, transformer, bert], ids=text_runs.NAMES)
def test_a_run_that_was_cut_off_goes_on(recipe, tmp_path, shared_tmp):
    name = recipe.__name__.split(".")[1]
    _, settings = text_runs.short(name, tmp_path, lines=800)
    whole, resumed = cut_runs.whole_and_resumed(recipe.train, settings, shared_tmp)
    assert len(resumed.history["loss"]) == 1
    assert resumed.held_out == whole.held_out
