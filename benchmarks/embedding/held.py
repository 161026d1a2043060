"""A worker: how much memory a table divided by columns takes, while it is made and while it is trained."""

import argparse
import dataclasses
import os

# Its allocator keeps what is freed: what a table takes could not be told from what was there before.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.embedding import measure, memory, settings
from benchmarks.hand_in import hand_in

STEPS = 3
SMALL = 64  # rows of a table that takes no memory to speak of


def train(strategy, setting) -> list[int]:
    """Makes and trains the divided table; bytes by which this worker's memory rose, at most, in both."""
    before = memory.resident()
    memory.forget_peak()
    step, _ = measure.trained_by_keras(strategy, setting, "columns")
    making = memory.peak() - before
    memory.forget_peak()
    for batch in settings.batches(setting, STEPS, strategy.extended.collectives.topology.rank):
        step(tf.constant(batch))
    return [making, memory.peak() - before]


def main() -> None:
    """Writes all workers' bytes as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("setting")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    strategy = tss.SparseStrategy()
    comm = strategy.extended.collectives
    setting = settings.known(args.quick)[args.setting].fitted(comm.topology.num_workers)
    for _ in range(2):  # the first time pays for much that comes once per process
        small = train(strategy, dataclasses.replace(setting, rows=SMALL))
    peaks = [large - least for large, least in zip(train(strategy, setting), small, strict=True)]
    making, training = tf.transpose(comm.all_gather(tf.constant([peaks], tf.int64))).numpy().tolist()
    found = {**settings.facts(args.setting, setting), "making": making, "training": training}
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
