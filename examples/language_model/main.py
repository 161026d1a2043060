"""Trains a language model on docstrings, on any number of workers.

python -m examples.language_model.main                                  one worker
horovodrun --gloo -np 2 python -m examples.language_model.main          two workers on this machine
"""

from examples.common import command_line, strategy
from examples.language_model import train
from examples.language_model.config import RECIPES
from examples.text import training
from examples.text.settings import TextSettings


def program(settings: TextSettings) -> int:
    """One run; returns the exit code."""
    workers = strategy.start(settings)
    result = train.train(settings, workers)
    found = train.perplexity(result)
    return training.conclude(
        settings, workers, result, "held-out perplexity", found, found <= settings.goal
    )


if __name__ == "__main__":
    command_line.run(program, RECIPES)
