"""Trains a Transformer to write sentences backwards, or to translate, on any number of workers.

python -m examples.transformer.main                                  one worker
horovodrun --gloo -np 2 python -m examples.transformer.main          two workers on this machine
"""

import operator

from examples.common import command_line
from examples.text.training import program as program_of
from examples.transformer import train
from examples.transformer.config import RECIPES

program = program_of(
    train.train, "held-out perplexity", lambda result: result.held_out["perplexity"], operator.le
)

if __name__ == "__main__":
    command_line.run(program, RECIPES)
