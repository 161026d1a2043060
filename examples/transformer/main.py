"""Trains a Transformer to write sentences backwards, or to translate, on any number of workers.

python -m examples.transformer.main                                  one worker
horovodrun --gloo -np 2 python -m examples.transformer.main          two workers on this machine
"""

from examples.common import command_line, strategy
from examples.text import training
from examples.text.settings import TextSettings
from examples.transformer import train
from examples.transformer.config import RECIPES


def program(settings: TextSettings) -> int:
    """One run; returns the exit code."""
    workers = strategy.start(settings)
    result = train.train(settings, workers)
    found = result.held_out["perplexity"]
    return training.conclude(
        settings, workers, result, "held-out perplexity", found, found <= settings.goal
    )


if __name__ == "__main__":
    command_line.run(program, RECIPES)
