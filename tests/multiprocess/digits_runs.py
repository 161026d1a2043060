"""Short runs of the digits example."""

import dataclasses

from examples.common import strategy as strategy_lib
from examples.digits import config as config_lib
from examples.digits import train

SHORT = config_lib.RECIPES["short"]
SWITCH = 4  # epoch from which the sums are exact
# The 28-epoch recipe in eight: a size less, the switch still where the size changes.
RECORD = dataclasses.replace(
    config_lib.RECIPES["record"],
    phases=((8, SWITCH), (12, 4)),
    sparse_epochs=SWITCH,
    pto="on",
)
DENSE = dataclasses.replace(RECORD, phases=((8, 7),), sparse_epochs=0, density=None)


def trained(config, strategy=None, callbacks=()):
    """(strategy, what `train` returns)."""
    strategy = strategy or strategy_lib.start(config)
    return strategy, train.train(config, strategy, callbacks)
