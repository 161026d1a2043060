"""A worker: runs the experiments of one job with their variants in turn, and checks each result."""

import argparse
import os
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.group_collectives import experiments
from benchmarks.hand_in import hand_in
from tf_sparse_strategy import collectives
from tf_sparse_strategy.topology import Topology

WARM_UP = 2
ROUNDS = 9
QUICK_BYTES, QUICK_ROUNDS = 1 << 20, 2  # --quick: at most these


def vector(rank: int, n: int) -> np.ndarray:
    """Integers, so that every order of addition gives the same sum."""
    return ((np.arange(n) * 7 + rank * 13) % 1000).astype(np.float32)


def measure(experiment, size: int, comm, rounds: int) -> list[dict]:
    """Times each variant once per round, one after the other.

    Returns one record per variant; its seconds are those of the slowest worker in each round, and
    `wrong` of the `checked` results differed from NumPy's, over rounds, warm-up and workers.
    """
    rank, workers, n = comm.topology.rank, comm.topology.num_workers, size // 4
    x = tf.constant(vector(rank, n))
    expected = experiment.expected(np.stack([vector(r, n) for r in range(workers)]))
    functions = {name: tf.function(fn) for name, fn in experiment.variants.items()}
    times = {name: [] for name in functions}
    wrong = dict.fromkeys(functions, 0)
    for number in range(WARM_UP + rounds):
        order = list(functions) if number % 2 else list(functions)[::-1]
        for name in order:
            comm.barrier()
            begin = time.perf_counter()
            result = functions[name](x).numpy()
            times[name].append((time.perf_counter() - begin) / experiment.calls)
            wrong[name] += not np.array_equal(result, expected)
    mine = tf.constant([times[name][WARM_UP:] for name in functions], tf.float64)
    slowest = comm.all_reduce(mine, op="max").numpy().tolist()
    failures = comm.all_reduce(tf.constant(list(wrong.values()), tf.int32)).numpy().tolist()
    return [
        {
            "experiment": experiment.name,
            "variant": name,
            "bytes": size,
            "seconds": seconds,
            "wrong": count,
            "checked": (WARM_UP + rounds) * workers,
        }
        for name, seconds, count in zip(functions, slowest, failures, strict=True)
    ]


def main() -> None:
    """Writes the records of the job as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["process_sets", "no_process_sets", "overhead"])
    parser.add_argument("output")
    parser.add_argument("--nodes", required=True, help="the node of each rank, e.g. 0,0,1,1")
    parser.add_argument("--quick", action="store_true", help="small vectors and few rounds")
    args = parser.parse_args()

    # Process sets must be known before Horovod starts, hence before it could tell the topology.
    rank = int(os.environ["HOROVOD_RANK"])
    nodes = tuple(int(node) for node in args.nodes.split(","))
    own, sets = {}, []
    if args.job == "process_sets":
        own, sets = experiments.process_sets(Topology(nodes, rank))
    hvd.init(process_sets=sets)
    comm = collectives.Collectives(collectives.find_topology())
    if comm.topology.nodes != nodes:
        raise RuntimeError(f"workers stand on nodes {comm.topology.nodes}, not {nodes}.")
    if args.job == "overhead":
        chosen = experiments.overhead_experiments(comm)
    else:
        chosen = experiments.group_experiments(comm, own)
        chosen += experiments.reduce_scatter_experiments(comm)
    records = []
    for experiment in chosen:
        for size in experiment.sizes:
            if args.quick and size > QUICK_BYTES:
                continue
            records += measure(experiment, size, comm, QUICK_ROUNDS if args.quick else ROUNDS)
            if comm.topology.rank == 0:
                print(f"{experiment.name}, {size} bytes", flush=True)
    hand_in(records, args.output, comm)


if __name__ == "__main__":
    main()
