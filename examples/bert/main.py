"""Trains BERT to find answers in a text, on any number of workers.

python -m examples.bert.main                                  one worker
horovodrun --gloo -np 2 python -m examples.bert.main          two workers on this machine
"""

import operator

from examples.bert import train
from examples.bert.config import RECIPES
from examples.common import command_line
from examples.text.training import program as program_of

program = program_of(
    train.train, "held-out accuracy", lambda result: result.held_out["accuracy"], operator.ge
)

if __name__ == "__main__":
    command_line.run(program, RECIPES)
