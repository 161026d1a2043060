"""A worker: trains one emulated model in each way, in turns."""

import dataclasses
import time

import keras
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import training
from benchmarks.end_to_end import models, names
from benchmarks.gradient_communication import methods
from benchmarks.hand_in import arguments, hand_in
from benchmarks.overlap.models import CLASSES
from tf_sparse_strategy import link_measurement
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Auto, HiTopK, ShardedTopK
from tf_sparse_strategy.communication.work import calibrated
from tf_sparse_strategy.cost_model import LinkModel

SUMS, PARTS = 3, 3
SMALL, LARGE = 1 << 20, 32 << 20  # bytes


def strategies(density: float) -> dict[str, tss.SparseStrategy]:
    """By name."""
    coded = ShardedTopK(density, wire_dtype="float16", index_coding="delta")
    return {
        names.DENSE: tss.SparseStrategy("dense"),
        names.DENSE_LARGE: tss.SparseStrategy("dense", bucket_bytes=LARGE),
        names.TORUS: tss.SparseStrategy("torus2d"),
        names.DEAR: tss.SparseStrategy(overlap=tss.overlap.DeAR()),
        names.DEAR_SMALL: tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=SMALL)),
        names.HITOPK: tss.SparseStrategy(HiTopK(density)),
        names.SHARDED: tss.SparseStrategy(ShardedTopK(density)),
        names.CODED: tss.SparseStrategy(coded),
        names.AUTO: tss.SparseStrategy(Auto(density)),
    }


def plain(name: str, rows: int, gradient) -> training.Step:
    """A step without a strategy."""
    model = training.with_optimizer(lambda: models.build(name))
    return tf.function(training.plain_step(model, rows, gradient))


def parts(comm: Collectives, step: training.Step, batch) -> dict[str, float]:
    """Seconds of one step, the median of some: "whole", "communicating", and each kind of collective."""
    comm.sites.timers += 1
    step(*batch)
    timed = sorted(
        (training.time_collectives(comm, lambda: step(*batch)) for _ in range(PARTS)),
        key=lambda found: found[0],
    )
    comm.sites.timers -= 1
    whole, communicating, found = timed[PARTS // 2]
    return {"whole": whole, "communicating": communicating, **found}


def sums(n: int, density: float, comm: Collectives) -> dict[str, list[float]]:
    """Seconds of one sum of all n gradients, nothing beside it: what the cost model predicts."""
    exact, sparse = methods.exact(n, comm), methods.sparse(n, density, comm)
    chosen = {
        names.DENSE: exact[methods.RING],
        names.TORUS: exact[methods.TORUS],
        names.HITOPK: sparse["HiTopK"],
        names.SHARDED: sparse["ShardedTopK"],
        names.CODED: sparse[names.CODED],
    }
    x, found = tf.random.stateless_normal([n], [comm.topology.rank, n]), {}
    for name, make in chosen.items():
        method = make()
        step, found[name] = tf.function(method.step), []
        step(x)
        for _ in range(SUMS):
            comm.barrier()
            begin = time.perf_counter()
            step(x)[:1].numpy()
            found[name].append(time.perf_counter() - begin)
    return found


def bytes_of(comm: Collectives, step: training.Step, batch) -> tuple[int, int]:
    """(local, cross) that this worker sends in a step."""
    before = comm.sites.traffic()[1]
    step(*batch)
    after = comm.sites.traffic()[1]
    return after.local - before.local, after.cross - before.cross


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = arguments(__doc__, model=models.MODELS, density=float, rounds=int, steps=int)
    ways = strategies(args.density)
    comm = ways[names.DENSE].extended.collectives
    workers, rank = comm.topology.num_workers, comm.topology.rank
    links = link_measurement.measure(comm)
    calibrations = {
        name: calibrated(links, ways[name].communication, comm)
        for name in (names.HITOPK, names.SHARDED, names.CODED)
    }
    batch = tf.random.stateless_normal([names.ROWS, CLASSES], [1, rank]), tf.range(names.ROWS) % CLASSES
    rows, steps, made = workers * names.ROWS, {}, {}
    for name, strategy in ways.items():
        with strategy.scope():
            model = training.with_optimizer(lambda: models.build(args.model))
        made[name] = training.plain_step(model, rows)
        steps[name] = training.under(strategy, made[name])
    steps[names.HOROVOD] = plain(args.model, rows, training.horovods_gradient())
    steps[names.HOROVOD_FP16] = plain(args.model, rows, training.horovods_gradient("fp16"))
    steps[names.ALONE] = plain(args.model, rows, training.local_gradient)
    for step in steps.values():
        for _ in range(names.WARM_UP):
            step(*batch)
    tell = training.tell_of(rank)
    seconds = training.time_rounds(
        steps, batch, args.rounds, args.steps, lambda text: tell(f"{args.model}, {text}"), comm.barrier
    )
    sent, breakdown, predicted, computed = {}, {}, {}, {}
    for name, strategy in ways.items():
        own = strategy.extended.collectives
        sent[name] = bytes_of(own, steps[name], batch)
        breakdown[name] = parts(own, training.under(strategy, made[name]), batch)
    elements = models.parameters(args.model)
    alone = sums(elements, args.density, comm)
    for name in alone:
        cost, own = ways[name].communication.cost, calibrations.get(name, links)
        predicted[name] = cost(elements, comm.topology, own).seconds
        free = LinkModel(0, 0, 0, 0, selection=own.selection, selection_start=own.selection_start)
        computed[name] = max(0.0, cost(elements, comm.topology, free).seconds)
    found = {
        "parameters": elements,
        "computation": models.seconds(args.model),
        "links": dataclasses.asdict(links),
        "seconds": seconds,
        "sent": sent,
        "parts": breakdown,
        "sums": alone,
        "selection": {name: own.selection for name, own in calibrations.items()},
        "computed": computed,
        "predicted": predicted,
    }
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    main()
