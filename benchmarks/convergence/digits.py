"""The digits recipe, ImageNet's 28 epochs in small: test accuracy, and what it sends."""

import dataclasses
import tempfile

from examples.digits.config import RECIPES, Config
from examples.digits.train import Result, load, train

RECORD = RECIPES["record"]
QUICK = dataclasses.replace(RECORD, phases=((8, 2), (12, 2)), sparse_epochs=2)
# For LARS divides by a gradient's norm, and so hides what is missing from it.
SGD = {"optimizer": "sgd", "learning_rate": 0.2, "pto": None}


def steps(config: Config) -> int:
    """Of an epoch."""
    return len(load(config.seed)[0][0]) // config.global_batch_size


def trained(config: Config, strategy, seed: int, sgd: bool) -> Result:
    """The recipe, but gradients summed as `strategy` does; collective."""
    with tempfile.TemporaryDirectory() as folder:
        changes = SGD if sgd else {}
        return train(dataclasses.replace(config, seed=seed, output_dir=folder, **changes), strategy)


def part_sent(result: Result, config: Config) -> float:
    """Bytes of a step that leave a node in the sparse epochs, of those in the exact ones.

    Without the first epoch of either kind, in which weights are sent or a step is compiled.
    """
    sent = result.history["cross_bytes_per_step"]
    return max(sent[1 : config.sparse_epochs]) / min(sent[config.sparse_epochs + 1 :])
