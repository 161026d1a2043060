"""One worker that compares the bytes it counts with those that cross its node's interfaces.

Rank 0 prints one JSON line {operation: {"local": [counted, carried], "cross": [counted, carried]}},
sums over all workers and nodes. Meant for netlab, where nothing else uses the interfaces: workers of
one node talk over `lo`, nodes over their link.
"""

import json

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_sparse_strategy import collectives
from tf_sparse_strategy.cluster.namespaces import INTERFACE, interface_bytes
from tf_sparse_strategy.topology import Group

ROWS = 1 << 20  # of 8 bytes each
INTERFACES = {"local": "lo", "cross": INTERFACE}


def sent_over(interface: str) -> int:
    """Bytes sent over an interface of this node so far."""
    return interface_bytes()[interface][0]


def sum_of_carried(totals: list[list[int]]) -> int:
    return sum(carried for _, carried in totals)


def main() -> None:
    collectives.start()
    comm = collectives.Collectives(collectives.find_topology())
    first_of_node = comm.topology.local == 0
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

    def bytes_so_far() -> tf.Tensor:
        """[local, cross] x [counted by this worker, carried for this node]."""
        counted = comm.traffic()[1]
        carried = {link: sent_over(name) * first_of_node for link, name in INTERFACES.items()}
        return tf.constant(
            [[getattr(counted, link), carried[link]] for link in INTERFACES], tf.int64
        )

    def bytes_of(operation) -> list[list[int]]:
        comm.barrier()
        before = bytes_so_far()
        comm.barrier()  # nobody starts before all have read
        operation()
        comm.barrier()  # all are through
        return comm.all_reduce(bytes_so_far() - before).numpy().tolist()

    report = {}
    for name, operation in operations.items():
        # The least of three: on a busy machine TCP sends segments again.
        totals = min((bytes_of(operation) for _ in range(3)), key=sum_of_carried)
        report[name] = dict(zip(INTERFACES, totals, strict=True))
    if comm.topology.rank == 0:
        print(json.dumps(report), flush=True)
    comm.barrier()


if __name__ == "__main__":
    main()
