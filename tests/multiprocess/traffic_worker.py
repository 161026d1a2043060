"""One worker that compares the bytes it counts with those the loopback interface carries.

Rank 0 prints one JSON line {operation: [counted over all workers, carried by the interface]}. Meant
for a network namespace of its own, where nothing else uses the interface.
"""

import json
import pathlib
import re

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_sparse_strategy import collectives
from tf_sparse_strategy.topology import Group

ROWS = 1 << 20  # of 8 bytes each


def carried_by_loopback() -> int:
    """Bytes sent over this namespace's loopback interface so far."""
    [line] = re.findall(r"^\s*lo:(.*)$", pathlib.Path("/proc/self/net/dev").read_text(), re.M)
    return int(line.split()[8])


def main() -> None:
    collectives.start()
    comm = collectives.Collectives(collectives.find_topology())
    x = tf.random.normal([ROWS, 2], seed=comm.topology.rank)
    flat = tf.reshape(x, [-1])
    operations = {
        "all_reduce": lambda: comm.all_reduce(x),
        "all_reduce bfloat16": lambda: comm.all_reduce(tf.cast(x, tf.bfloat16)),
        "all_gather": lambda: comm.all_gather(x),
        "all_to_all": lambda: comm.all_to_all(x),
        "reduce_scatter": lambda: comm.reduce_scatter(flat),
        "broadcast": lambda: comm.broadcast(x),
        "all_reduce cross": lambda: comm.all_reduce(x, Group.CROSS),
        "all_gather local": lambda: comm.all_gather(x, Group.LOCAL),
        "not counted": lambda: hvd.allreduce(x, op=hvd.Sum, name="behind_our_back"),
    }
    report = {}
    for name, operation in operations.items():
        comm.barrier()
        before, carried = comm.traffic()[1].total, carried_by_loopback()
        comm.barrier()  # nobody starts before all have read
        operation()
        counted = comm.traffic()[1].total - before
        counted = int(comm.all_reduce(tf.constant(counted, tf.int64)))  # all are through
        report[name] = [counted, carried_by_loopback() - carried]
    if comm.topology.rank == 0:
        print(json.dumps(report), flush=True)
    comm.barrier()


if __name__ == "__main__":
    main()
