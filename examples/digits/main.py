"""Trains a small CNN on scikit-learn's handwritten digits, on any number of workers.

python -m examples.digits.main                        one worker
horovodrun --gloo -np 4 python -m examples.digits.main       four workers on this machine
"""

import pathlib
import statistics
import sys

import tensorflow as tf
from absl import app

import tf_sparse_strategy as tss
from examples.digits import config as config_lib
from examples.digits import train


def report(config: config_lib.Config, strategy: tss.SparseStrategy, result: train.Result) -> None:
    """Prints what the run gave and writes its picture; rank 0's task."""
    from examples.digits import plot  # only rank 0 needs matplotlib

    workers = strategy.topology.num_workers
    history = result.history
    # The first epoch includes tracing the model.
    speed = statistics.median(history["samples_per_second"][1:] or history["samples_per_second"])
    picture = pathlib.Path(config.output_dir).resolve() / "curves.png"
    plural = "s" if workers > 1 else ""
    title = f"Digits, {workers} worker{plural}: test accuracy {result.test_accuracy:.2%}"
    plot.save_curves(history, title, picture)
    print(
        f"workers            {workers}",
        f"samples/s          {speed:,.0f}",
        f"bytes on the wire  {history['bytes_per_step'][-1]:,.0f} per step, all workers together",
        f"test accuracy      {result.test_accuracy:.2%}",
        f"picture            {picture}",
        sep="\n",
        flush=True,
    )


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}; all settings are flags, see --help.")
    config = config_lib.from_flags()
    tf.get_logger().setLevel("WARNING")  # P workers would repeat TensorFlow's notes
    strategy = tss.SparseStrategy(communication=train.communication(config))
    result = train.train(config, strategy)
    if strategy.topology.rank == 0 and result.history:
        report(config, strategy, result)
    elif strategy.topology.rank == 0:
        print(f"All epochs were done before. Test accuracy {result.test_accuracy:.2%}", flush=True)
    if result.test_accuracy < config.goal:
        print(
            f"FAILED: test accuracy {result.test_accuracy:.2%} is below the goal of "
            f"{config.goal:.2%} (--goal); more epochs (--phases) may help.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    app.run(main)
