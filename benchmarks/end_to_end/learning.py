"""A worker: trains wide layers on handwritten digits in several ways; loss and accuracy as time goes by.

Nothing is emulated here: real images, real arithmetic.
"""

import argparse
import json
import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import training
from benchmarks.convergence import runs
from benchmarks.end_to_end import names
from examples.digits.train import load
from tf_sparse_strategy.communication import Auto, HiTopK, ShardedTopK

BATCH = 128  # of all workers


class Curve(keras.callbacks.Callback):
    """Notes seconds of training, loss and accuracy at the end of each epoch.

    Neither the first step counts, in which TensorFlow traces, nor do the tests.
    """

    def __init__(self, test):
        super().__init__()
        self._test, self.points, self._spent = test, [], 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if not batch and not self.points:
            self._begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self._spent += time.perf_counter() - self._begin
        images, labels = self._test
        found = np.argmax(self.model.predict(images, batch_size=len(images), verbose=0), axis=1)
        self.points.append([self._spent, logs["loss"], float(np.mean(found == labels))])


def train(strategy: tss.SparseStrategy, seed: int, epochs: int) -> list[list[float]]:
    """[seconds, loss, accuracy on images that were not trained on] after each epoch. Collective."""
    keras.utils.set_random_seed(seed)
    (x, y), test = load(seed=0)  # the same images for all seeds
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=seed)
    with strategy.scope():
        wide = [keras.layers.Dense(width, activation="relu") for width in (1024, 512)]
        model = keras.Sequential(
            [keras.layers.Input([8, 8, 1]), keras.layers.Flatten(), *wide, keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
    curve = Curve(test)
    model.fit(data.batch(BATCH, drop_remainder=True), epochs=epochs, verbose=0, callbacks=[curve])
    return curve.points


def main() -> None:
    """Writes the curves as JSON, by way and seed, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()
    warm_up = 2 * (len(load(seed=0)[0][0]) // BATCH)  # epochs
    ways = {
        names.DENSE: lambda: tss.SparseStrategy(),
        names.TORUS: lambda: tss.SparseStrategy("torus2d"),
        names.DEAR: lambda: tss.SparseStrategy(overlap=tss.overlap.DeAR()),
        names.HITOPK: lambda: tss.SparseStrategy(runs.warmed_up(HiTopK, warm_up)),
        names.SHARDED: lambda: tss.SparseStrategy(runs.warmed_up(ShardedTopK, warm_up)),
        names.AUTO: lambda: tss.SparseStrategy(Auto(runs.DENSITY)),
    }
    found: dict[str, list] = {name: [] for name in ways}
    for seed in range(args.seeds):
        for name, make in ways.items():
            keras.backend.clear_session()
            strategy = make()
            found[name].append(train(strategy, seed, args.epochs))
            seconds, loss, accuracy = found[name][-1][-1]
            tell = training.tell_of(strategy.topology.rank)
            tell(f"seed {seed}, {name}: loss {loss:.3g}, accuracy {accuracy:.3f} after {seconds:.0f} s")
    if strategy.topology.rank == 0:
        with open(args.output, "w") as file:
            json.dump(found, file)
    strategy.extended.collectives.barrier()


if __name__ == "__main__":
    main()
