"""GNMT, the Transformer and BERT go on after they were cut off as if they had not been."""

import dataclasses

import pytest

from examples.bert import train as bert
from examples.common import strategy as strategies
from examples.gnmt import train as gnmt
from examples.transformer import train as transformer
from tests.multiprocess import cut_runs, text_runs


def test_a_run_of_other_texts_is_another(tmp_path, shared_tmp):
    """Its words have other numbers."""
    for lines in (800, 600):
        _, settings = text_runs.short("bert", tmp_path, lines=lines)
        settings = dataclasses.replace(settings, resume=True, check=False, output_dir=str(shared_tmp))
        if lines == 800:
            bert.train(settings, strategies.start(settings))
    with pytest.raises(ValueError, match="samples='samples of .* must be 'samples of"):
        bert.train(settings, strategies.start(settings))


@pytest.mark.parametrize("recipe", [gnmt, transformer, bert], ids=text_runs.NAMES)
def test_a_run_that_was_cut_off_goes_on(recipe, tmp_path, shared_tmp):
    name = recipe.__name__.split(".")[1]
    _, settings = text_runs.short(name, tmp_path, lines=800)
    whole, resumed = cut_runs.whole_and_resumed(recipe.train, settings, shared_tmp)
    assert len(resumed.history["loss"]) == 1
    assert resumed.held_out == whole.held_out
