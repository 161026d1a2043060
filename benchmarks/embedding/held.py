"""A worker: how much memory a table divided by columns takes, while it is made and while it is trained."""

import argparse
import json

import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.embedding import measure, memory, settings

STEPS = 3


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
    before = memory.resident()
    memory.forget_peak()
    step, _ = measure.trained_by_keras(strategy, setting, "columns")
    peaks = [memory.peak() - before]
    memory.forget_peak()
    for batch in settings.batches(setting, STEPS, comm.topology.rank):
        step(tf.constant(batch))
    peaks.append(memory.peak() - before)
    making, training = tf.transpose(comm.all_gather(tf.constant([peaks], tf.int64))).numpy().tolist()
    if comm.topology.rank == 0:
        with open(args.output, "w") as file:
            json.dump({**settings.facts(args.setting, setting), "making": making, "training": training}, file)
    comm.barrier()


if __name__ == "__main__":
    main()
