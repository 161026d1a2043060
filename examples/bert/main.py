"""Trains BERT to find answers in a text, on any number of workers.

python -m examples.bert.main                                  one worker
horovodrun --gloo -np 2 python -m examples.bert.main          two workers on this machine
"""

from examples.bert import train
from examples.bert.config import RECIPES
from examples.common import command_line, strategy
from examples.text import training
from examples.text.settings import TextSettings


def program(settings: TextSettings) -> int:
    """One run; returns the exit code."""
    workers = strategy.start(settings)
    result = train.train(settings, workers)
    found = result.held_out["accuracy"]
    return training.conclude(
        settings, workers, result, "held-out accuracy", found, found >= settings.goal
    )


if __name__ == "__main__":
    command_line.run(program, RECIPES)
