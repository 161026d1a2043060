"""A worker: trains one model by each method in turns; time per step, and whether workers agree."""

import argparse
import json
import time

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.sparse_training.models import TASKS, Task
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Auto, HiTopK, ShardedTopK

CODED = {"wire_dtype": "float16", "index_coding": "delta"}
CHECKED_STEPS = 3


def schemes(density: float) -> dict:
    """By name: (the strategy's communication, limit of a bucket or None)."""
    return {
        "dense": ("dense", None),
        "dense, small buckets": ("dense", 2 << 20),
        "torus2d": ("torus2d", None),
        "HiTopK": (HiTopK(density), None),
        "ShardedTopK": (ShardedTopK(density), None),
        "ShardedTopK, fp16 + delta": (ShardedTopK(density, **CODED), None),
        "Auto": (Auto(density), None),
    }


def make_model(task: Task) -> keras.Model:
    """The model with its optimizer, from the same weights each time."""
    keras.utils.set_random_seed(1)
    model = task.build()
    model.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.optimizer.build(model.trainable_variables)
    return model


def step_of(model: keras.Model, rows: int, gradient=None):
    """One step whose loss is this worker's share of the mean over `rows` rows."""

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.reduce_sum(losses) / rows
        variables = model.trainable_variables
        gradients = gradient(tape, loss, variables) if gradient else tape.gradient(loss, variables)
        model.optimizer.apply(gradients, variables)
        return loss

    return step


def horovods(compression):
    """Gradients of Horovod's own tape."""

    def gradient(tape, loss, variables):
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, compression=compression)
        return tape.gradient(loss, [v.value for v in variables])

    return gradient


def under(strategy: tss.SparseStrategy, step):
    """`step` as the strategy runs it."""
    return tf.function(lambda x, y: strategy.run(step, args=(x, y)))


def methods(task: Task, density: float, workers: int) -> dict:
    """By name: (the model, its step)."""
    rows, found = workers * task.batch, {}
    for name, (scheme, bucket_bytes) in schemes(density).items():
        strategy = tss.SparseStrategy(scheme, bucket_bytes)
        with strategy.scope():
            model = make_model(task)
        found[name] = model, under(strategy, step_of(model, rows))
    for name, compression in (
        ("bare Horovod", hvd.Compression.none),
        ("bare Horovod, fp16", hvd.Compression.fp16),
    ):
        model = make_model(task)
        found[name] = model, tf.function(step_of(model, rows, horovods(compression)))
    model = make_model(task)
    found["no communication"] = model, tf.function(step_of(model, rows))
    return found


def apart(model: keras.Model, comm: Collectives) -> bool:
    """Whether workers hold different weights."""
    flat = tf.concat([tf.reshape(tf.constant(w), [-1]) for w in model.get_weights()], axis=0)
    low, high = (comm.all_reduce(flat, op=op).numpy() for op in ("min", "max"))
    return not np.array_equal(low, high)


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--density", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    task = TASKS[args.task]
    comm = Collectives(tss.SparseStrategy().topology)
    workers, rank = comm.topology.num_workers, comm.topology.rank
    found = methods(task, args.density, workers)
    own = slice(rank * task.batch, (rank + 1) * task.batch)
    x, y = (tf.constant(part[own]) for part in task.rows(workers))
    for _, step in found.values():
        for _ in range(CHECKED_STEPS):
            step(x, y)
    differ = [name for name, (model, _) in found.items() if apart(model, comm)]
    times = {name: [] for name in found}
    for number in range(args.rounds):
        for name in list(found) if number % 2 else list(found)[::-1]:
            step = found[name][1]
            step(x, y)
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(args.steps):
                step(x, y)
            times[name].append((time.perf_counter() - begin) / args.steps)
        if rank == 0:
            latest = ", ".join(f"{name} {values[-1] * 1e3:.4g}" for name, values in times.items())
            print(f"{args.task}, round {number + 1} of {args.rounds}, ms per step: {latest}", flush=True)
    if rank == 0:
        parameters = found["dense"][0].count_params()
        with open(args.output, "w") as file:
            json.dump({"parameters": parameters, "differ": differ, "seconds": times}, file)
    comm.barrier()


if __name__ == "__main__":
    main()
