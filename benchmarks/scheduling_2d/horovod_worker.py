"""A worker: trains one model as a user of Horovod does, its table whole on all workers."""

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from benchmarks import hand_in, training
from benchmarks.horovod_model import Model
from benchmarks.scheduling_2d.settings import CHECKED_STEPS, GATHERED, MODELS, REDUCED
from benchmarks.scheduling_2d.worker import Clock, batches, build, kernel, words

REDUCIBLE = 100e6  # bytes of a table: a larger one's all-reduce takes a minute


def made(model, as_dense: bool) -> Model:
    """The model, from the same weights each time."""
    keras.utils.set_random_seed(1)
    built = build(model, keras.layers.Embedding, Model)
    built.as_dense = as_dense
    return built


def check_alike(model: keras.Model) -> None:
    """Raises RuntimeError where workers, who have read other rows, have other weights.

    Of the table the most frequent words are looked at: eight copies of all would not fit into memory.
    """
    norms = [float(tf.norm(variable.value[:1000])) for variable in model.trainable_variables]
    if np.ptp(hvd.allgather(tf.constant([norms])).numpy(), axis=0).any():
        raise RuntimeError("Horovod's workers have different weights.")


def main() -> None:
    """Writes seconds of a step, and weights to compare, as JSON, by way, on rank 0."""
    args = hand_in.arguments(__doc__, model=MODELS, rounds=int, steps=int)
    hvd.init()
    model, rank = MODELS[args.model], hvd.rank()
    models = {GATHERED: made(model, as_dense=False)}
    if 4 * model.text.vocabulary * model.columns < REDUCIBLE:
        models[REDUCED] = made(model, as_dense=True)
    checked, timed = (
        batches(words(model, hvd.size(), steps)[:, rank : rank + 1])
        for steps in (CHECKED_STEPS, args.steps)
    )
    for way in models.values():
        way.fit(checked, epochs=1, verbose=0)
        check_alike(way)
    # Not that of REDUCED, whose optimizer is not told which rows were read, and moves them all.
    of_one = kernel(models[GATHERED]).tolist()
    found = {name: [] for name in models}
    for number in range(args.rounds):
        for name, way in models.items():
            clock = Clock()
            hvd.allreduce(tf.constant(0.0), name="start")
            way.fit(timed, epochs=1, verbose=0, callbacks=[clock])
            found[name].append(clock.step)
        latest = ", ".join(f"{name} {values[-1] * 1e3:.4g}" for name, values in found.items())
        training.tell_of(rank)(f"round {number + 1} of {args.rounds}, ms per step: {latest}")
    hand_in.write({"seconds": found, "kernel": of_one}, args.output, rank)
    hvd.allreduce(tf.constant(0.0), name="end")  # as long as one is not done, none leaves


if __name__ == "__main__":
    main()
