"""A worker: trains one model in all ways, in turns."""

import dataclasses
import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import tcp_losses, training
from benchmarks.hand_in import arguments, hand_in
from benchmarks.overlap.models import CLASSES, Layer, Waiting
from benchmarks.scheduling_2d.settings import (
    ALONE,
    BOTH,
    CHECKED_STEPS,
    MODELS,
    WITH,
    WITHOUT,
    Model,
)
from examples.text.zipf import gradient_rows
from tf_sparse_strategy.collectives import Collectives

BUCKET = 1 << 20  # dense parts are some twentieth of the paper's, and so are buckets
# By name: arguments of SparseStrategy.
WAYS = {
    WITHOUT: {"bucket_bytes": BUCKET},
    WITH: {"bucket_bytes": BUCKET, "delay_rows": True},
    BOTH: {"overlap": tss.overlap.DeAR(fusion=BUCKET), "delay_rows": True},
    ALONE: {"bucket_bytes": BUCKET},
}


def words(model: Model, workers: int, steps: int) -> np.ndarray:
    """Ids, [steps, workers, samples, length]; the same on all workers."""
    return model.text.draw(np.random.default_rng(steps), [steps, workers, model.samples, model.length])


def batches(ids: np.ndarray) -> tf.data.Dataset:
    """Global batches of `words`."""
    samples = ids.reshape(-1, ids.shape[-1])
    labels = samples[:, 0] % CLASSES
    return tf.data.Dataset.from_tensor_slices((samples, labels)).batch(ids.shape[1] * ids.shape[2])


def build(model: Model, embedding=tss.layers.ShardedEmbedding, kind=keras.Model) -> keras.Model:
    """The compiled model, of this kind of table and of model."""
    ids = keras.Input([model.length], dtype="int32")
    rows = embedding(model.text.vocabulary, model.columns)(ids)
    x = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(rows))
    for _ in range(model.layers):
        x = Waiting(Layer(model.weights, model.forward))(x)
    built = kind(ids, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(tss.optimizers.LazyAdam(1e-3), loss, jit_compile=False)
    return built


def kernel(model: keras.Model) -> np.ndarray:
    """Weights of the layer behind the table: what the two jobs hand in to be compared."""
    return next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense)).kernel.numpy()


def method(name: str, model: Model) -> keras.Model:
    """The model, to be trained in the way of this name; from the same weights each time."""
    keras.utils.set_random_seed(1)
    strategy = tss.SparseStrategy(**WAYS[name])
    with strategy.scope():
        built = build(model)
    strategy.extended.collectives.silent = name == ALONE
    return built


class Clock(keras.callbacks.Callback):
    """Seconds of a step, the mean of all but the first, and of the epoch's end.

    Each of these steps sends what the one before has delayed, and the end what the last one has.
    """

    def on_train_batch_end(self, batch, logs=None):
        self._last = time.perf_counter()
        if batch == 0:
            self._first = self._last
        else:
            self.step = (self._last - self._first) / batch

    def on_epoch_end(self, epoch, logs=None):
        self.end = time.perf_counter() - self._last


def time_fits(models: dict, data: tf.data.Dataset, rounds: int, comm: Collectives) -> dict[str, dict]:
    """Lets the methods take turns; of each in each round: seconds of a step, of an epoch's end, losses."""
    tell = training.tell_of(comm.topology.rank)
    steps, ends, packets, timeouts = ({name: [] for name in models} for _ in range(4))
    for number in range(rounds):
        for name in list(models) if number % 2 else list(models)[::-1]:
            clock = Clock()
            comm.barrier()
            before = tcp_losses.now()
            models[name].fit(data, epochs=1, verbose=0, callbacks=[clock])
            lost = tcp_losses.of_all(tcp_losses.now().since(before), comm)
            steps[name].append(clock.step)
            ends[name].append(clock.end)
            packets[name].append(lost.packets)
            timeouts[name].append(lost.timeouts)
        latest = ", ".join(f"{name} {values[-1] * 1e3:.4g}" for name, values in steps.items())
        tell(f"round {number + 1} of {rounds}, ms per step: {latest}")
    return {"seconds": steps, "ends": ends, "packets sent again": packets, "timeouts": timeouts}


def differences(models: dict, comm: Collectives) -> dict[str, float]:
    """By way: the largest difference of a weight from that of `WITHOUT`, on any worker."""
    found = {}
    for name in (WITH, BOTH, ALONE):
        pairs = zip(models[name].weights, models[WITHOUT].weights, strict=True)
        most = np.max([np.max(np.abs(a.numpy() - b.numpy())) for a, b in pairs])
        most = np.nan_to_num(most, nan=np.inf)  # a maximum over workers may pass over NaN
        found[name] = float(comm.all_reduce(tf.constant(most), op="max", purpose="same"))
    return found


def rows_of(ids: np.ndarray) -> dict[str, float]:
    """The mean of `gradient_rows` over steps."""
    flat = ids.reshape(*ids.shape[:2], -1)
    found = [dataclasses.asdict(gradient_rows(a, b)) for a, b in zip(flat, flat[1:], strict=False)]
    return {name: float(np.mean([rows[name] for rows in found])) for name in found[0]}


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = arguments(__doc__, model=MODELS, rounds=int, steps=int)
    topology, model = tss.SparseStrategy().topology, MODELS[args.model]
    comm, workers = Collectives(topology), topology.num_workers
    models = {name: method(name, model) for name in WAYS}
    for way in models.values():
        way.fit(batches(words(model, workers, CHECKED_STEPS)), epochs=1, verbose=0)
    differ, of_one = differences(models, comm), kernel(models[WITHOUT]).tolist()
    ids = words(model, workers, args.steps)
    measured = time_fits(models, batches(ids), args.rounds, comm)
    found = {
        "workers": workers,
        "words": workers * model.samples * model.length,
        "columns": model.columns,
        "rows": rows_of(ids),
        "forward": model.layers * model.forward * 1e-3,
        "dense weights": model.layers * model.weights,
        "goal": model.goal,
        "differences": differ,
        "kernel": of_one,
        "steps": args.steps,
        **measured,
    }
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
