"""When this worker's processor or accelerator computed, by TensorFlow's profiler.

On a CPU: the operations that TensorFlow ran, except those that call others, move data or communicate. On a
GPU: its kernels, except NCCL's; it was not tried on one.
"""

import pathlib
import re
import tempfile
import time

import tensorflow as tf
from absl import logging
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_sparse_strategy import stall

_GAP = 50  # microseconds: what TensorFlow itself does between two operations
_ANCHOR = "sparse_strategy_clock"  # an event of which the time is known; the last of several
_LATE = 1_000_000  # nanoseconds
_NOT_COMPUTING = re.compile(
    "Horovod|Call|PyFunc|^(If|While|StatelessIf|StatelessWhile|Case|NoOp|Const|Assert)$"
    "|Variable|Identity|Iterator|Optional|Dataset|Summary|^_(Arg|Retval|Send|Recv|Host)"
)


class Profile:
    """Records from now on; one at a time in a process."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="sparse_strategy_profile_")
        self._known = None
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        try:
            tf.profiler.experimental.start(self._directory.name, options)
        except tf.errors.AlreadyExistsError:
            logging.warning("The trace will not show computation: another profiler runs in this process.")
            return
        for _ in range(10):
            self._known = time.time_ns()
            with tf.profiler.experimental.Trace(_ANCHOR):
                pass
            if time.time_ns() - self._known < _LATE:
                break  # else others had the processor in between

    def stop(self) -> list[stall.Interval]:
        """Disjoint intervals of Unix time, microseconds, in which something was computed."""
        with self._directory:
            if self._known is None:
                return []
            tf.profiler.experimental.stop()
            [file] = pathlib.Path(self._directory.name).rglob("*.xplane.pb")
            space = xplane_pb2.XSpace.FromString(file.read_bytes())
        return intervals(space, self._known)


def intervals(space: xplane_pb2.XSpace, known: int) -> list[stall.Interval]:
    """When something was computed. Pure.

    Args:
      space: what the profiler has recorded.
      known: Unix time of the last event `_ANCHOR`, nanoseconds.
    """
    computed, anchors = [], []
    for plane in space.planes:
        on_device = plane.name.startswith("/device:GPU")
        if not (on_device or plane.name.startswith("/host:CPU")):
            continue
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns + event.offset_ps // 1000
                about = plane.event_metadata[event.metadata_id]
                if about.name == _ANCHOR:
                    anchors.append(begin)
                elif _computes(about, on_device):
                    computed.append((begin, begin + event.duration_ps // 1000))
    shift = known - max(anchors, default=known)
    return stall.union((((b + shift) // 1000, (e + shift) // 1000) for b, e in computed), _GAP)


def _computes(about, on_device):
    if on_device:
        return "nccl" not in about.name.lower()
    operation = about.display_name  # its type; other events of the host have none
    return bool(operation) and not _NOT_COMPUTING.search(operation)
