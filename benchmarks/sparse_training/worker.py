"""A worker: trains one model by each method in turns; time per step, and whether workers agree."""


import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import training
from benchmarks.hand_in import arguments, hand_in
from benchmarks.sparse_training.models import TASKS, Task
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Auto, Float16, HiTopK, ShardedTopK, Torus2D

CODED = {"wire_dtype": "float16", "index_coding": "delta"}
CHECKED_STEPS = 3
# The dense settings that are fastest where computation dominates, and what is to choose one of them.
CLOSE = ("dense, 32 MB buckets", "dense, 1 MB buckets, default", "float16", "Auto")


def schemes(density: float) -> dict:
    """By name: (the strategy's communication, limit of a bucket or None)."""
    return {
        "dense, 32 MB buckets": ("dense", 32 << 20),
        "dense, 1 MB buckets, default": ("dense", None),
        "torus2d": ("torus2d", None),
        "float16": ("float16", None),
        "float16, torus2d": (Float16(Torus2D()), None),
        "HiTopK": (HiTopK(density), None),
        "ShardedTopK": (ShardedTopK(density), None),
        "ShardedTopK, fp16 + delta": (ShardedTopK(density, **CODED), None),
        "ShardedTopK applying 3 K, fp16 + delta": (ShardedTopK(density, applied=3, **CODED), None),
        "Auto": (Auto(density), None),
    }


def methods(task: Task, density: float, workers: int) -> dict:
    """By name: (the model, its step)."""
    rows, found = workers * task.batch, {}
    for name, (scheme, bucket_bytes) in schemes(density).items():
        strategy = tss.SparseStrategy(scheme, bucket_bytes)
        with strategy.scope():
            model = training.with_optimizer(task.build)
        found[name] = model, training.under(strategy, training.plain_step(model, rows))
    for name, gradient in (
        ("bare Horovod", training.horovods_gradient()),
        ("bare Horovod, fp16", training.horovods_gradient("fp16")),
        ("no communication", training.local_gradient),
    ):
        model = training.with_optimizer(task.build)
        found[name] = model, tf.function(training.plain_step(model, rows, gradient))
    return found


def apart(model: keras.Model, comm: Collectives) -> bool:
    """Whether workers hold different weights."""
    flat = tf.concat([tf.reshape(tf.constant(w), [-1]) for w in model.get_weights()], axis=0)
    low, high = (comm.all_reduce(flat, op=op).numpy() for op in ("min", "max"))
    return not np.array_equal(low, high)


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    options = {"task": sorted(TASKS), "methods": ["all", "close"]}
    args = arguments(__doc__, **options, density=float, rounds=int, steps=int)
    task = TASKS[args.task]
    comm = Collectives(tss.SparseStrategy().topology)
    workers, rank = comm.topology.num_workers, comm.topology.rank
    found = methods(task, args.density, workers)
    if args.methods == "close":
        found = {name: found[name] for name in CLOSE}
    own = slice(rank * task.batch, (rank + 1) * task.batch)
    x, y = (tf.constant(part[own]) for part in task.rows(workers))
    for _, step in found.values():
        for _ in range(CHECKED_STEPS):
            step(x, y)
    differ = [name for name, (model, _) in found.items() if apart(model, comm)]
    steps, tell = {name: step for name, (_, step) in found.items()}, training.tell_of(rank)
    times = training.time_rounds(
        steps, (x, y), args.rounds, args.steps, lambda text: tell(f"{args.task}, {text}"), comm.barrier
    )
    parameters = next(iter(found.values()))[0].count_params()
    hand_in({"parameters": parameters, "differ": differ, "seconds": times}, args.output, comm)


if __name__ == "__main__":
    main()
