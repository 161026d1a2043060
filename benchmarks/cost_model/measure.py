"""A worker: measures the links, then times every collective and scheme beside its prediction."""

import argparse
import dataclasses
import statistics
import time

import tensorflow as tf

from benchmarks.hand_in import hand_in
from tf_sparse_strategy import collectives, cost_model, link_measurement
from tf_sparse_strategy.communication import Dense, Torus2D
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.topology import Group

# Bytes each worker holds: how many calls, one after the other, share one measurement. Starting eight
# processes on two cores takes longer than a small message, and no collective waits for that alone.
SIZES = {4 << 10: 16, 128 << 10: 8, 2 << 20: 2}
ROUNDS = 7
SCHEMES = {"Dense": Dense(), "Torus2D": Torus2D()}


def operations(comm, model) -> dict:
    """By name: (what to run on a vector, seconds predicted from its bytes)."""
    topology = comm.topology
    found = {}
    for group in (group for group in Group if not topology.is_trivial(group)):
        for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
            run, predict = getattr(comm, kind), getattr(cost_model, kind)
            found[f"{kind} {group.name}"] = (
                lambda x, run=run, group=group: run(x, group=group),
                lambda n, predict=predict, group=group: predict(topology, n, model, group).seconds,
            )
    found["broadcast GLOBAL"] = (
        comm.broadcast,
        lambda n: cost_model.broadcast(topology, n, model).seconds,
    )
    for name, scheme in SCHEMES.items():
        found[name] = (
            lambda x, scheme=scheme: scheme.reduce(x, State({}), comm),
            lambda n, scheme=scheme: scheme.cost(n // 4, topology, model).seconds,
        )
    return found


def chain(run, calls: int):
    """A `tf.function` that runs `run` on a vector of zeros so many times, each after the one before.

    Each needs a number of the one before: TensorFlow drops a Horovod operation whose result nobody reads.
    """

    def once(i, x):
        first, *_ = tf.nest.flatten(run(x))
        return i + 1, x + tf.reshape(first, [-1])[0]

    def repeat(x):
        return tf.while_loop(lambda i, _: i < calls, once, (0, x), parallel_iterations=1)

    return tf.function(repeat, autograph=False)


def main() -> None:
    """Writes the records as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    collectives.start()
    comm = collectives.Collectives(collectives.find_topology())
    begin = time.perf_counter()
    model = link_measurement.measure(comm)
    took = time.perf_counter() - begin
    records = []
    for name, (run, predict) in operations(comm, model).items():
        for n, calls in SIZES.items():
            function, x = chain(run, calls), tf.zeros([n // 4])
            times = []
            for _ in range(args.rounds + 1):
                comm.barrier()
                start = time.perf_counter()
                function(x)
                times.append((time.perf_counter() - start) / calls)
            mine = tf.constant(times[1:], tf.float64)
            slowest = comm.all_reduce(mine, op="max").numpy().tolist()
            records.append(
                {"operation": name, "bytes": n, "seconds": slowest, "predicted": predict(n)}
            )
            if comm.topology.rank == 0:
                took_ms = statistics.median(slowest) * 1e3
                print(f"{name}, {n} bytes: {took_ms:.1f} ms, {predict(n) * 1e3:.1f} predicted")
    found = {"model": dataclasses.asdict(model), "seconds": took, "records": records}
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
