"""A worker: TensorFlow's MultiWorkerMirroredStrategy on the same model, in a job of its own."""

import os

import tensorflow as tf

from benchmarks import hand_in, training
from benchmarks.dense_training.multi_worker_mirrored import make_strategy
from benchmarks.end_to_end import models, names
from benchmarks.overlap.models import CLASSES


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = hand_in.arguments(__doc__, model=models.MODELS, nodes=int, local=int, rounds=int, steps=int)
    rank = int(os.environ["HOROVOD_RANK"])
    strategy = make_strategy(args.nodes, args.local, rank)
    with strategy.scope():
        model = training.with_optimizer(lambda: models.build(args.model))
    step = training.under(strategy, training.plain_step(model, args.nodes * args.local * names.ROWS))
    batch = tf.random.stateless_normal([names.ROWS, CLASSES], [1, rank]), tf.range(names.ROWS) % CLASSES
    for _ in range(names.WARM_UP):
        step(*batch)
    seconds = training.time_rounds(
        {names.MIRRORED: step}, batch, args.rounds, args.steps, training.tell_of(rank)
    )
    hand_in.write({"seconds": seconds}, args.output, rank)


if __name__ == "__main__":
    main()
