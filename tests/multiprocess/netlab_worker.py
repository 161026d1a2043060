"""One rank that sums a vector several times and prints what it saw as one JSON line.

Usage: netlab_worker.py MEGABYTES REPETITIONS
"""

import json
import socket
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf


def main() -> None:
    megabytes, repetitions = map(int, sys.argv[1:])
    hvd.init()

    @tf.function
    def total(x):
        return hvd.allreduce(x, op=hvd.Sum, name="total")

    x = tf.fill([megabytes * 10**6 // 4], float(hvd.rank() + 1))
    total(x[:1])  # all are ready
    begin = time.monotonic()
    for _ in range(repetitions):
        result = total(x)
    report = {
        "rank": hvd.rank(),
        "local_rank": hvd.local_rank(),
        "host": socket.gethostname(),
        "hosts_address": socket.gethostbyname(socket.gethostname()),
        "sum": float(result[-1]),
        "seconds": time.monotonic() - begin,
    }
    print(json.dumps(report), flush=True)
    total(x[:1])  # nobody leaves before all have reported


if __name__ == "__main__":
    main()
