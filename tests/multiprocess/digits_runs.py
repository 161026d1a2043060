"""Short runs of the digits example."""

import dataclasses

from examples.common import strategy as strategy_lib
from examples.digits import config as config_lib
from examples.digits import train

SHORT = config_lib.RECIPES["short"]
# The 28-epoch recipe's optimizer, its norms divided over the workers; sums are exact.
DENSE = dataclasses.replace(
    config_lib.RECIPES["record"], phases=((8, 7),), sparse_epochs=0, density=None, pto="on"
)


def trained(config, strategy=None, callbacks=()):
    """(strategy, what `train` returns)."""
    strategy = strategy or strategy_lib.start(config)
    return strategy, train.train(config, strategy, callbacks)
