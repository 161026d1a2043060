"""Recipes' runs that are cut off at the beginning of an epoch, and gone on with."""

import dataclasses
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from examples.common import strategy as strategies
from examples.text.settings import TextSettings
from examples.text.training import Result
from tests.multiprocess.saving_models import interruption


def whole_and_resumed(
    train: Callable[..., Result], settings: TextSettings, directory: pathlib.Path
) -> tuple[Result, Result]:
    """What a run gave, and what one like it gave that was cut off before its last epoch, when it went on."""
    settings = dataclasses.replace(settings, resume=True, check=False)

    def run(name, callbacks=()):
        own = dataclasses.replace(settings, output_dir=str(directory / name))
        return train(own, strategies.start(own), callbacks)

    whole = run("whole")
    with pytest.raises(RuntimeError, match="interrupted"):
        run("cut", [interruption(tf.keras, settings.epochs - 1)])
    return whole, run("cut")
