"""A worker: TensorFlow's MultiWorkerMirroredStrategy learns the same digits, in a job of its own."""

import itertools
import os
import time

import keras
import tensorflow as tf

from benchmarks import hand_in, training
from benchmarks.dense_training.multi_worker_mirrored import make_strategy
from benchmarks.end_to_end import digits, names


def train(
    strategy: tf.distribute.Strategy, workers: int, rank: int, seed: int, epochs: int
) -> list[list[float]]:
    """[seconds, loss, accuracy on images that were not trained on] after each epoch. Collective.

    Seconds are counted as `learning.Curve` counts them: without the first step, in which TensorFlow
    traces, and without the tests.
    """
    keras.utils.set_random_seed(seed)
    data, (images, labels) = digits.images(seed, epochs)
    steps, batches = len(data) // epochs, iter(data)
    with strategy.scope():
        model = digits.build(keras.Model)
        model.optimizer.build(model.trainable_variables)
    step = training.under(strategy, training.plain_step(model, digits.BATCH))
    points, spent = [], 0.0
    for _ in range(epochs):
        begin, losses = time.perf_counter(), []
        for x, y in itertools.islice(batches, steps):
            losses.append(step(x[rank::workers], y[rank::workers]))
            if not points and len(losses) == 1:
                begin = time.perf_counter()
        mean = strategy.reduce("SUM", tf.reduce_mean(losses), axis=None)  # each of its rows' share
        spent += time.perf_counter() - begin
        points.append([spent, float(mean), digits.accuracy(model(images).numpy(), labels)])
    return points


def main() -> None:
    """Writes the curves of all seeds as JSON, on rank 0."""
    args = hand_in.arguments(__doc__, nodes=int, local=int, seeds=int, epochs=int)
    rank, workers = int(os.environ["HOROVOD_RANK"]), args.nodes * args.local
    strategy = make_strategy(args.nodes, args.local, rank)
    tell, found = training.tell_of(rank), []
    for seed in range(args.seeds):
        found.append(train(strategy, workers, rank, seed, args.epochs))
        seconds, loss, accuracy = found[-1][-1]
        tell(f"seed {seed}, {names.MIRRORED}: loss {loss:.3g}, accuracy {accuracy:.3f} after {seconds:.0f} s")
    hand_in.write({names.MIRRORED: found}, args.output, rank)


if __name__ == "__main__":
    main()
