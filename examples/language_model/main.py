"""Trains a language model on docstrings, on any number of workers.

python -m examples.language_model.main                                  one worker
horovodrun --gloo -np 2 python -m examples.language_model.main          two workers on this machine
"""

import operator

from examples.common import command_line
from examples.language_model import train
from examples.language_model.config import RECIPES
from examples.text.training import program as program_of

program = program_of(train.train, "held-out perplexity", train.perplexity, operator.le)

if __name__ == "__main__":
    command_line.run(program, RECIPES)
