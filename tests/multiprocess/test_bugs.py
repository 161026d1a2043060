"""One test per past defect, with its story."""

import collections
import json
import os
import time

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

STEPS = 5
os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # read when Horovod starts, in the first fixture


def executions(path, fn) -> collections.Counter:
    """How often each kind of operation was negotiated while `fn` ran; rank 0 knows, others not."""
    hvd.start_timeline(str(path))
    time.sleep(3)  # Horovod opens the file in its own time
    fn()
    hvd.stop_timeline()
    time.sleep(3)
    if hvd.rank() > 0:
        return collections.Counter()
    text = path.read_text().rstrip().rstrip(",").removesuffix("]")
    events = json.loads(text + "]")
    return collections.Counter(e["name"] for e in events if e.get("ph") == "B")


def test_a_collective_of_constants_runs_in_every_step(comm, topology, shared_tmp):
    # Horovod's operations are not stateful: TensorFlow's constant folding ran an all-reduce of a
    # constant once, while optimizing, and every step reused the value.
    shapes = [(), (3,), (2, 3)]

    @tf.function
    def step():
        return [
            (comm.all_reduce(tf.ones(s)), comm.all_gather(tf.ones([2, *s])), comm.broadcast(tf.ones(s)))
            for s in shapes
        ]

    def steps():
        for _ in range(STEPS):
            step()

    counted = executions(shared_tmp / f"{topology.rank}.json", steps)
    if topology.rank == 0:
        for kind in ("ALLREDUCE", "ALLGATHER", "BROADCAST"):
            assert counted[f"NEGOTIATE_{kind}"] == STEPS * len(shapes), counted


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_a_collective_whose_result_one_worker_ignores_runs(comm, topology, dtype):
    # It hung: TensorFlow makes an operation without state a NoOp when nobody uses its result, be it a control
    # dependency of the variable that counts it.
    @tf.function
    def step(x):
        gathered = comm.all_gather(x)
        received = comm.all_to_all(x[:0], [0] * topology.num_workers)[0]
        summed = comm.all_reduce(tf.cast(x, tf.float32))
        if topology.rank == 0:
            return tf.cast(gathered, tf.float32)[0] + tf.reduce_sum(tf.cast(received, tf.float32)) + summed
        return tf.cast(x, tf.float32)

    for _ in range(STEPS):
        step(tf.ones([1], dtype))


def test_the_count_can_find_a_folded_collective(topology, shared_tmp):
    @tf.function
    def step():
        return hvd.mpi_ops._allreduce(tf.ones([3]), name="folded", op=hvd.Sum)

    counted = executions(
        shared_tmp / f"control.{topology.rank}.json", lambda: [step() for _ in range(STEPS)]
    )
    if topology.rank == 0:
        assert counted["NEGOTIATE_ALLREDUCE"] == 1, counted
