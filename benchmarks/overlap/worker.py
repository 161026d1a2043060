"""A worker: ways of training models, in turns."""

import argparse
import dataclasses
from collections.abc import Iterable

import keras
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import training
from benchmarks.hand_in import hand_in
from benchmarks.overlap import models
from benchmarks.overlap.names import ALONE, BUCKET, BUCKET_NAME, GATHER_LAST, HOROVOD, TUNED
from tf_sparse_strategy import link_measurement
from tf_sparse_strategy.collectives import Collectives

CHECKED_STEPS, ROWS = 2, 4
# By name: arguments of SparseStrategy.
OURS = {
    "DeAR, not fused": {"overlap": tss.overlap.DeAR(fusion=1)},
    f"DeAR, {BUCKET_NAME}": {"overlap": tss.overlap.DeAR(fusion=BUCKET)},
    TUNED: {"overlap": tss.overlap.DeAR(fusion="auto", tuning=1.0)},
    GATHER_LAST: {"overlap": tss.overlap.ShardedUpdate(fusion=BUCKET)},
    "all-reduce, not fused": {"bucket_bytes": 1},
    f"all-reduce, {BUCKET_NAME}": {"bucket_bytes": BUCKET},
    ALONE: {"bucket_bytes": BUCKET},
}


def data() -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of one worker; the same for all."""
    return tf.random.stateless_normal([ROWS, models.CLASSES], [1, 2]), tf.range(ROWS)


def method(name: str, model_name: str, comm: Collectives):
    """(the model, one step on a worker's rows)."""
    workers = comm.topology.num_workers

    def made():
        return training.with_optimizer(lambda: models.build(model_name))

    if name in OURS:
        strategy = tss.SparseStrategy(**OURS[name])
        with strategy.scope():
            model = made()
        strategy.extended.collectives.silent = name == ALONE
        return model, training.under(strategy, training.plain_step(model, workers * ROWS))
    model = made()
    return model, tf.function(training.plain_step(model, workers * ROWS, training.horovods_gradient()))


def after_some_steps(model: keras.Model, step: training.Step, batch) -> list[float]:
    """The smallest and the largest element of each weight; those of all workers' chunks are alike."""
    for _ in range(CHECKED_STEPS):
        step(*batch)
    if isinstance(model.distribute_strategy, tss.SparseStrategy):
        model.distribute_strategy.synchronize()
    return [float(x) for w in model.get_weights() for x in (w.min(), w.max())]


def tune(model: keras.Model, workers: int) -> dict[str, float]:
    """Lets `fit` try sizes until it has chosen; seconds of a step by size."""
    x, y = data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(model.optimizer, loss, jit_compile=False)
    rows = tf.data.Dataset.from_tensors((x, y)).unbatch().repeat().batch(workers * ROWS)
    tuner = model.distribute_strategy.extended.chunked.tuner_of(model)
    while not tuner.is_done:
        model.fit(rows, steps_per_epoch=20, verbose=0)
    return {str(size): seconds for size, seconds in tuner.trials.seconds.items()}


def measured(model_name: str, names: Iterable[str], args: argparse.Namespace, comm: Collectives) -> dict:
    """All there is to say of one model."""
    topology = comm.topology
    keras.backend.clear_session()
    ways = {name: method(name, model_name, comm) for name in names}
    batch = data()
    weights = {name: after_some_steps(model, step, batch) for name, (model, step) in ways.items()}
    trials = {}
    if TUNED in ways:
        model = ways[TUNED][0]
        trials = tune(model, topology.num_workers)
        # Traced with the size that was found: the function of before keeps that of before.
        again = training.plain_step(model, topology.num_workers * ROWS)
        ways[TUNED] = model, training.under(model.distribute_strategy, again)
        ways[TUNED][1](*batch)
    to_time = {name: step for name, (_, step) in ways.items()}
    told = training.tell_of(topology.rank)
    for step in to_time.values():
        for _ in range(args.warm_up):
            step(*batch)
    seconds = training.time_rounds(to_time, batch, args.rounds, args.steps, told, comm.barrier)
    return {
        "bytes": models.num_bytes(model_name),
        "forward": models.forward_seconds(model_name),
        "trials": trials,
        "weights": weights,
        "seconds": seconds,
    }


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--models", choices=models.MODELS, nargs="+", required=True)
    parser.add_argument("--horovod", action="store_true", help="only Horovod's tape, by its settings")
    parser.add_argument("--warm_up", type=int, default=0, help="steps of each way before any is timed")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    strategy = tss.SparseStrategy()
    comm = Collectives(strategy.topology)
    links = dataclasses.asdict(link_measurement.measure(comm))
    names = [HOROVOD] if args.horovod else list(OURS)
    found = {
        model: {"links": links, **measured(model, names, args, comm)} for model in args.models
    }
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
