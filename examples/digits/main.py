"""Trains a small CNN on scikit-learn's handwritten digits, on any number of workers.

python -m examples.digits.main                        one worker
horovodrun --gloo -np 4 python -m examples.digits.main       four workers on this machine
"""

import pathlib

import tf_sparse_strategy as tss
from examples.common import command_line
from examples.common import report as report_lib
from examples.common import strategy as strategy_lib
from examples.digits import config as config_lib
from examples.digits import train


def report(config: config_lib.Config, strategy: tss.SparseStrategy, result: train.Result) -> None:
    """Prints what the run gave and writes its picture; rank 0's task."""
    from examples.digits import plot  # only rank 0 needs matplotlib

    workers = strategy.topology.num_workers
    picture = pathlib.Path(config.output_dir).resolve() / "curves.png"
    plural = "s" if workers > 1 else ""
    title = f"Digits, {workers} worker{plural}: test accuracy {result.test_accuracy:.2%}"
    plot.save_curves(result.history, title, picture)
    rows = report_lib.speed_and_bytes(strategy, result.history)
    rows |= {"test accuracy": f"{result.test_accuracy:.2%}", "picture": str(picture)}
    report_lib.show(rows)


def main(config: config_lib.Config) -> int:
    strategy = strategy_lib.start(config)
    result = train.train(config, strategy)
    first = strategy.topology.rank == 0
    if first and result.history:
        report(config, strategy, result)
    elif first:
        print(f"All epochs were done before. Test accuracy {result.test_accuracy:.2%}", flush=True)
    goal = config.goal if config.check and not config.synthetic else 0.0
    return report_lib.verdict(strategy, "test accuracy", result.test_accuracy, goal)


if __name__ == "__main__":
    command_line.run(main, config_lib.RECIPES)
