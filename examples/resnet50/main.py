"""Trains ResNet-50 on ImageNet's TFRecords by the recipe of the 28-epoch records, on any number of workers.

python -m examples.resnet50.main --recipe=tiny                 one worker, small images that are made for it
horovodrun --gloo -np 128 -H vm1:8,... python -m examples.resnet50.main --data_dir=/mnt/imagenet
"""

import pathlib

from examples.common import command_line, report
from examples.common import strategy as strategy_lib
from examples.resnet50 import config as config_lib
from examples.resnet50 import train


def main(config: config_lib.Config) -> int:
    strategy = strategy_lib.start(config)
    result = train.train(config, strategy)
    if strategy.topology.rank == 0:
        rows = report.speed_and_bytes(strategy, result.history) if result.history else {}
        rows |= {"top-1 accuracy": f"{result.top1:.2%}", "top-5 accuracy": f"{result.top5:.2%}"}
        rows["results"] = str(pathlib.Path(config.output_dir).resolve() / "dawnbench.tsv")
        report.show(rows)
    goal = config.goal if config.check else 0.0
    return report.verdict(strategy, "top-5 accuracy", result.top5, goal)


if __name__ == "__main__":
    command_line.run(main, config_lib.RECIPES)
