"""What counts as computation, in a profile of a known stretch of work."""

import time

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_sparse_strategy import computing

KNOWN = 1_700_000_000_000_000_000  # ns


def space(plane_name, *events):
    """A profile of one line; the anchor is its first event, at 5 µs by the profile's clock."""
    found = xplane_pb2.XSpace()
    plane = found.planes.add(name=plane_name)
    line = plane.lines.add(timestamp_ns=2_000)
    for number, (name, begin, end) in enumerate([(computing._ANCHOR, 5, 6), *events]):
        plane.event_metadata[number].name = name
        if name.count(":") == 1:
            plane.event_metadata[number].display_name = name.partition(":")[2]
        us = 10**6  # ps
        line.events.add(metadata_id=number, offset_ps=(begin - 2) * us, duration_ps=(end - begin) * us)
    return found


def intervals(*args):
    """Relative to the anchor, microseconds."""
    start = KNOWN // 1000
    return [(b - start, e - start) for b, e in computing.intervals(space(*args), KNOWN)]


def test_operations_of_the_host():
    events = [
        ("a/MatMul:_MklMatMul", 1000, 1100),
        ("b/If:If", 0, 9000),
        ("StatefulPartitionedCall:StatefulPartitionedCall", 0, 9000),
        ("c/HorovodAllreduce:HorovodAllreduce", 0, 9000),
        ("d/ReadVariableOp:ReadVariableOp", 0, 9000),
        ("arg:_Arg", 0, 9000),
        ("IteratorGetNext:IteratorGetNext", 0, 9000),
        ("e/Tanh:Tanh", 1120, 1200),  # close enough
        ("f/Add:AddV2", 2000, 2100),
        ("ThreadpoolListener::StartRegion", 0, 9000),
    ]
    assert intervals("/host:CPU", *events) == [(995, 1195), (1995, 2095)]


def test_of_several_anchors_the_last_counts():
    """Which is made where the clock was read long before the one before."""
    events = [("a/MatMul:MatMul", 1000, 1100)]
    for more in ([(computing._ANCHOR, 3, 4)], [(computing._ANCHOR, 3, 4), (computing._ANCHOR, 4, 5)]):
        assert intervals("/host:CPU", *more, *events) == [(995, 1095)]


def test_kernels_of_a_gpu():
    """Their clock is the host's; the anchor stands on the host."""
    found = space("/host:CPU")
    device = space("/device:GPU:0", ("ampere_sgemm", 105, 205), ("ncclKernel_AllReduce", 0, 9000))
    device.planes[0].lines[0].events.pop(0)
    for planes in ([*found.planes, *device.planes], [*device.planes, *found.planes]):
        both = xplane_pb2.XSpace(planes=planes)
        start = KNOWN // 1000
        assert [(b - start, e - start) for b, e in computing.intervals(both, KNOWN)] == [(100, 200)]


def test_a_profile_of_real_work():
    """Around a pause, by the same clock as time.time()."""
    x = tf.random.stateless_normal([600, 600], [1, 2])

    @tf.function
    def work(x):
        y = tf.linalg.matmul(x, x)
        y = tf.ensure_shape(tf.numpy_function(pause, [y], tf.float32, stateful=False), x.shape)
        return tf.linalg.matmul(y, y)

    def pause(y):
        pauses.append(time.time())
        time.sleep(0.05)
        pauses.append(time.time())
        return y

    pauses = []
    work(x)
    del pauses[:]
    profile = computing.Profile()
    begin = time.time()
    work(x).numpy()
    end = time.time()
    found = profile.stop()
    slack = 0.01  # between the reading of two clocks this process may have to wait
    assert begin - slack <= 1e-6 * found[0][0] and 1e-6 * found[-1][1] <= end + slack
    before = [e for e in found if 1e-6 * e[1] <= pauses[0] + slack]
    after = [e for e in found if 1e-6 * e[0] >= pauses[1] - slack]
    assert before and after and len(before) + len(after) == len(found)


def test_another_profiler_is_let_run(tmp_path, caplog):
    tf.profiler.experimental.start(str(tmp_path))
    profile = computing.Profile()
    assert profile.stop() == []
    assert "another profiler" in caplog.text
    tf.profiler.experimental.stop()
