"""A worker: times the collectives that training is made of, and counts what TCP sends again."""

import time

import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks import tcp_losses
from benchmarks.congestion_control.settings import (
    BYTES,
    EXCHANGE,
    EXCHANGES,
    GATHER,
    IN_A_ROW,
    REDUCE,
    SCATTER,
)
from benchmarks.hand_in import arguments, hand_in
from tf_sparse_strategy.collectives import Collectives


def operations(comm: Collectives) -> dict:
    """By name: a function of a worker's tensor, whose length is a multiple of P."""
    workers = comm.topology.num_workers

    def exchanges(x):
        for _ in range(IN_A_ROW):
            x, _ = comm.all_to_all(x)
        return x

    ways = {
        EXCHANGE: lambda x: comm.all_to_all(x)[0],
        EXCHANGES: exchanges,
        SCATTER: comm.reduce_scatter,
        GATHER: lambda x: comm.all_gather(x[: tf.size(x) // workers]),
        REDUCE: comm.all_reduce,
    }
    return {name: tf.function(way) for name, way in ways.items()}


def measured(run, x: tf.Tensor, times: int, comm: Collectives) -> dict:
    """Seconds of each time, those of the slowest worker; all nodes' packets and timeouts of all times."""
    run(x), run(x)  # traced; connections are warm
    seconds = []
    before = tcp_losses.now()
    for _ in range(times):
        comm.barrier()
        begin = time.perf_counter()
        run(x)
        seconds.append(time.perf_counter() - begin)
    lost = tcp_losses.of_all(tcp_losses.now().since(before), comm)
    slowest = comm.all_reduce(tf.constant(seconds, tf.float64), op="max", purpose="seconds")
    return {
        "seconds": slowest.numpy().tolist(),
        "packets sent again": lost.packets,
        "timeouts": lost.timeouts,
    }


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = arguments(__doc__, times=int)
    comm = Collectives(tss.SparseStrategy().topology)
    rank, workers = comm.topology.rank, comm.topology.num_workers
    part = BYTES // 4 // workers
    x = tf.repeat(tf.range(workers, dtype=tf.float32) + rank * workers, part)  # [i part]: for worker i
    swapped = comm.all_to_all(x)[0][::part]  # from worker i: its part for this one
    right = bool(tf.reduce_all(swapped == tf.range(workers, dtype=tf.float32) * workers + rank))
    if not right:
        raise RuntimeError(f"rank {rank}: an all-to-all has brought {swapped.numpy()}")
    found = {name: measured(run, x, args.times, comm) for name, run in operations(comm).items()}
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
