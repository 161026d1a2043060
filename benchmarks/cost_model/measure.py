"""A worker: measures the links, then times every collective and scheme beside its prediction."""

import argparse
import dataclasses
import json
import statistics
import time

import tensorflow as tf

from tf_sparse_strategy import collectives, cost_model, link_measurement
from tf_sparse_strategy.communication import Dense, Torus2D
from tf_sparse_strategy.topology import Group

SIZES = [4 << 10, 128 << 10, 2 << 20]  # bytes each worker holds
ROUNDS = 7
SCHEMES = {"Dense": Dense(), "Torus2D": Torus2D()}


def operations(comm, model) -> dict:
    """By name: (what to run on a vector, seconds predicted from its bytes)."""
    topology = comm.topology
    found = {}
    for group in Group:
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
            lambda x, scheme=scheme: scheme.reduce(x, {}, comm),
            lambda n, scheme=scheme: scheme.cost(n // 4, topology, model).seconds,
        )
    return found


def compiled(run):
    """`run` as a `tf.function` of a vector."""
    return tf.function(lambda x: run(x), autograph=False)


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
        function = compiled(run)
        for n in SIZES:
            x = tf.zeros([n // 4])
            times = []
            for _ in range(args.rounds + 1):
                comm.barrier()
                start = time.perf_counter()
                function(x)
                times.append(time.perf_counter() - start)
            mine = tf.constant(times[1:], tf.float64)
            slowest = comm.all_reduce(mine, op="max").numpy().tolist()
            records.append(
                {"operation": name, "bytes": n, "seconds": slowest, "predicted": predict(n)}
            )
            if comm.topology.rank == 0:
                took_ms = statistics.median(slowest) * 1e3
                print(f"{name}, {n} bytes: {took_ms:.1f} ms, {predict(n) * 1e3:.1f} predicted")
    if comm.topology.rank == 0:
        with open(args.output, "w") as file:
            found = {"model": dataclasses.asdict(model), "seconds": took, "records": records}
            json.dump(found, file)
    comm.barrier()


if __name__ == "__main__":
    main()
