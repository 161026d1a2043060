"""A worker: trains on handwritten digits in several ways; loss and accuracy as time goes by."""

import functools
import time

import keras
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import training
from benchmarks.convergence import runs
from benchmarks.end_to_end import digits, names
from benchmarks.hand_in import arguments, hand_in
from benchmarks.horovod_model import Model as HorovodsModel
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Auto, HiTopK, ShardedTopK


class Curve(keras.callbacks.Callback):
    """Notes seconds of training, loss and accuracy at the end of each epoch.

    Neither the first step counts, in which TensorFlow traces, nor do the tests.
    """

    def __init__(self, test, comm: Collectives):
        super().__init__()
        self._test, self._comm, self.points, self._spent = test, comm, [], 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if not batch and not self.points:
            self._begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self._spent += time.perf_counter() - self._begin
        images, labels = self._test
        logits = self.model.predict(images, batch_size=len(images), verbose=0)
        # Horovod's is of this worker's rows, the others' of all.
        mean = float(self._comm.all_reduce(tf.constant(logs["loss"]))) / self._comm.topology.num_workers
        self.points.append([self._spent, mean, digits.accuracy(logits, labels)])


def train(way: str, make, comm: Collectives, seed: int, epochs: int) -> list[list[float]]:
    """[seconds, loss, accuracy on images that were not trained on] after each epoch. Collective.

    Args:
      way: its name.
      make: of its strategy; None for Horovod alone.
      comm: of this worker.
      seed: of the weights and of the order of the images.
      epochs: how many.
    """
    keras.utils.set_random_seed(seed)
    data, test = digits.images(seed, epochs)
    steps = len(data) // epochs
    if way == names.HOROVOD:
        rank, workers = comm.topology.rank, comm.topology.num_workers
        data = data.map(lambda x, y: (x[rank::workers], y[rank::workers]))
        model = digits.build(HorovodsModel)  # the seed makes all workers' weights alike
    else:
        with make().scope():
            model = digits.build(keras.Model)
    curve = Curve(test, comm)
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=[curve])
    return curve.points


def main() -> None:
    """Writes the curves as JSON, by way and seed, on rank 0."""
    args = arguments(__doc__, seeds=int, epochs=int)
    warm_up = 2 * len(digits.images(seed=0, epochs=1)[0])  # epochs
    coded = functools.partial(ShardedTopK, wire_dtype="float16", index_coding="delta")
    ways = {
        names.HOROVOD: None,
        names.DENSE: lambda: tss.SparseStrategy(),
        names.TORUS: lambda: tss.SparseStrategy("torus2d"),
        names.DEAR: lambda: tss.SparseStrategy(overlap=tss.overlap.DeAR()),
        names.HITOPK: lambda: tss.SparseStrategy(runs.warmed_up(HiTopK, warm_up)),
        names.SHARDED: lambda: tss.SparseStrategy(runs.warmed_up(ShardedTopK, warm_up)),
        names.CODED: lambda: tss.SparseStrategy(runs.warmed_up(coded, warm_up)),
        names.AUTO: lambda: tss.SparseStrategy(Auto(runs.DENSITY)),
    }
    comm = Collectives(tss.SparseStrategy().topology)
    found: dict[str, list] = {name: [] for name in ways}
    for seed in range(args.seeds):
        for name, make in ways.items():
            keras.backend.clear_session()
            found[name].append(train(name, make, comm, seed, args.epochs))
            seconds, loss, accuracy = found[name][-1][-1]
            tell = training.tell_of(comm.topology.rank)
            tell(f"seed {seed}, {name}: loss {loss:.3g}, accuracy {accuracy:.3f} after {seconds:.0f} s")
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
