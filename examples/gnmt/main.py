"""Trains GNMT to write sentences backwards, or to translate, on any number of workers.

python -m examples.gnmt.main                                  one worker
horovodrun --gloo -np 2 python -m examples.gnmt.main          two workers on this machine
"""

import operator

from examples.common import command_line
from examples.gnmt import train
from examples.gnmt.config import RECIPES
from examples.text.training import program as program_of

program = program_of(
    train.train, "held-out perplexity", lambda result: result.held_out["perplexity"], operator.le
)

if __name__ == "__main__":
    command_line.run(program, RECIPES)
