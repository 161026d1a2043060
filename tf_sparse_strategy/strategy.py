"""SparseStrategy: the public face."""

import contextlib
import numbers
import os
import sys
import weakref

import tensorflow as tf

from tf_sparse_strategy import (
    agreement,
    collectives,
    devices,
    keras_callers,
    keras_hooks,
    saving,
    watchdog,
)
from tf_sparse_strategy import communication as communication_lib
from tf_sparse_strategy.communication import Communication
from tf_sparse_strategy.extended import StrategyExtended, tracing
from tf_sparse_strategy.memory import Memory
from tf_sparse_strategy.overlap.divided import Divided, is_size
from tf_sparse_strategy.overlap.wait_free import WaitFree
from tf_sparse_strategy.topology import Topology

_SILENCE_LIMIT, _STALL_LIMIT = 45.0, 1800.0  # seconds


class SparseStrategy(tf.distribute.MirroredStrategy):
    """Synchronous data-parallel training over processes, one replica per process.

    With P workers, each computes the gradient of its share of the global batch; the sum over workers

        g = sum_r g_r

    is applied by every worker to its own copy of the variables, which start from rank 0's values and
    stay identical. Launched plainly, `python train.py` is the one-worker case of the same code.

    Args:
      communication: how gradients are summed: the name of a scheme of `tss.communication` in lower case, such
        as "dense" (default), "torus2d" or "auto", or an instance.
      bucket_bytes: gradients travel in buckets of at most this many bytes, so that the last layers'
        are on their way while the first layers still compute. Smaller buckets start earlier, but each
        waits for all workers to be ready. Default 1 MiB for `Dense`, also in 16 bits, whose small buckets
        Horovod fuses where they are ready together, and for `Auto` where it takes that; 32 MiB for all
        others, whose buckets cost more messages. Of what `overlap` divides, its `fusion` decides.
      silence_limit: seconds after which a worker that does not answer (machine or network down, process
        stopped) is lost and the job ends. Also the age at which a wait for a worker that lives, but does
        not call, is reported. Default 45.
      stall_limit: seconds after which such a wait ends the job; at least `silence_limit`, and longer than
        what one worker may do alone, such as saving. Default 1800. A process's first strategy sets both
        limits of Horovod itself: later ones cannot wait longer.
      overlap: what sums overlap with. None (default): the backward pass (`tss.overlap.WaitFree()` is the
        same with buckets of 25 MiB). `tss.overlap.DeAR()`: half of each sum overlaps with the next step's
        forward pass. `tss.overlap.ShardedUpdate()`: the update of the weights and the optimizer's state are
        divided over the workers.
      delay_rows: whether rows of sharded tables that the next batch does not read are exchanged and updated
        during the next step, and rows that it alone reads looked up during this one; the result is the same,
        to the bit. Default False. See docs/scheduling_2d.md.

    Raises:
      ValueError: the communication is unknown, or cannot run on this placement of workers; a number is out
        of range; two arguments exclude each other (`bucket_bytes` and `WaitFree`, `DeAR` or `ShardedUpdate`
        and any scheme but `Dense`); or the workers' arguments, versions or devices differ.
      TypeError: communication, overlap or delay_rows has the wrong type.
      RuntimeError: accelerators were not limited to one per process; another worker failed to start; or
        "auto" cannot measure the links.

    Example:
      >>> import keras, numpy
      >>> strategy = SparseStrategy()     # horovodrun --gloo -np 8 -H vm1:4,vm2:4 python train.py
      >>> with strategy.scope():
      ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
      ...     model.compile(optimizer="sgd", loss="mse")
      >>> history = model.fit(numpy.ones([8, 3]), numpy.ones([8]), batch_size=4, verbose=0)
      >>> strategy.num_replicas_in_sync   # 1 when launched plainly
      1
    """

    def __init__(
        self,
        communication: str | Communication = "dense",
        bucket_bytes: int | None = None,
        silence_limit: float = _SILENCE_LIMIT,
        stall_limit: float = _STALL_LIMIT,
        overlap: Divided | WaitFree | None = None,
        delay_rows: bool = False,
    ):
        keras_hooks.install()
        saving.install()
        tracing.install()
        tf.config.list_physical_devices("GPU")  # a sick driver hangs here, before others can wait for us
        # The watchdog, which knows the cause, is to be the first whose patience ends.
        patience = silence_limit if _is_positive(silence_limit) else _SILENCE_LIMIT
        longest = stall_limit if _is_positive(stall_limit) else _STALL_LIMIT
        collectives.start(message_limit=patience + 15, stall_limit=longest + 60)
        device = devices.pin()
        workers = collectives.Collectives(collectives.find_topology())
        with agreement.together(workers):
            scheme = communication_lib.get(communication)
            _check_arguments(bucket_bytes, silence_limit, stall_limit, overlap, delay_rows)
            if isinstance(overlap, WaitFree):
                bucket_bytes, overlap = overlap.fusion, None
            if overlap is not None:
                overlap.check_communication(scheme)
            scheme.validate(workers.topology)
            # NumPy's numbers have no JSON, in which the workers compare them.
            bucket_bytes = None if bucket_bytes is None else int(bucket_bytes)
            silence_limit, stall_limit = float(silence_limit), float(stall_limit)
        if workers.topology.num_workers > 1:
            settings = {
                "SparseStrategy's communication": repr(scheme),
                "SparseStrategy's bucket_bytes": bucket_bytes,
                "SparseStrategy's limits": [silence_limit, stall_limit],
                "SparseStrategy's overlap": repr(overlap),
                "SparseStrategy's delay_rows": delay_rows,
            }
            _require_same_program(settings, device, workers)
        if workers.topology.rank == 0:
            keras_hooks.warn_of_models_outside_the_scope()
        scheme = scheme.prepare(workers)
        bucket_bytes = scheme.bucket_bytes if bucket_bytes is None else bucket_bytes
        extended = StrategyExtended(self, workers, scheme, bucket_bytes, device, overlap, delay_rows)
        # MirroredStrategy's own constructor would claim all local devices. The name is inherited
        # because both Kerases admit only strategies of that class to loss scaling and backups.
        tf.distribute.Strategy.__init__(self, extended)
        watch = watchdog.watch(workers, silence_limit, stall_limit)
        if watch is not None:
            weakref.finalize(self, watch.close).atexit = False

    @property
    def topology(self) -> Topology:
        """Where this worker stands among all workers."""
        return self.extended.collectives.topology

    @property
    def communication(self) -> Communication:
        """How gradients are summed; `Piecewise` changes it during training."""
        return self.extended.gradients.communication

    @communication.setter
    def communication(self, communication):
        raise AttributeError(
            f"strategy.communication = {communication!r}: it is chosen when the strategy is made. To change "
            "it during training, by epochs or steps, make the strategy with communication="
            "tss.communication.Piecewise([(0, HiTopK(0.01)), (13, Torus2D())])."
        )

    @property
    def residual(self) -> Memory:
        """What sparse communication has not sent yet; make it part of a `tf.train.Checkpoint`."""
        return self.extended.gradients.memory

    def synchronize(self) -> None:
        """Brings weights and slots that are behind up to date; all workers call.

        Needed only with `overlap` and `delay_rows`, where a custom loop or a callback within an epoch looks
        at weights.

        Raises:
          RuntimeError: it is called in a `tf.function` or within a step.
        """
        parts = [p for p in (self.extended.chunked, self.extended.delayed) if p is not None]
        in_step = tf.distribute.get_strategy() is self and not tf.distribute.in_cross_replica_context()
        if parts and (in_step or not tf.executing_eagerly()):
            raise RuntimeError(
                "strategy.synchronize() was called within a tf.function or strategy.run; whether weights are "
                "behind is known between steps only. Call it outside of both, on all workers."
            )
        for part in parts:
            part.synchronize()

    def run(self, fn, args=(), kwargs=None, options=None):
        """Calls `fn` on this worker's replica; the P calls together are one step.

        See `tf.distribute.Strategy.run`. `predict` gets every worker's rows, in order.
        """
        delayed = self.extended.delayed
        with contextlib.nullcontext() if delayed is None else delayed.running(fn):
            outputs = super().run(fn, args=args, kwargs=kwargs, options=options)
        if not keras_callers.is_predict_step(fn):
            return outputs
        return self.extended.gather_predictions(outputs, args)

    def reduce(self, reduce_op, value, axis):
        """Reduces a per-replica value, or a nest of them, over the workers.

        Args:
          reduce_op: "SUM" or "MEAN", or a `tf.distribute.ReduceOp`.
          value: what `run` returned.
          axis: None to reduce over workers only; else also over this dimension of each worker's
            value, which may then differ in size between workers.

        Returns:
          The result, the same on every worker.

        Raises:
          ValueError: the operation is unknown, a mirrored value, the same on all workers, is to be summed, or
            XLA is to compile the step.
          TypeError: the value is a `tf.SparseTensor` or `tf.RaggedTensor`, or its dtype cannot be summed.
        """
        if keras_callers.is_symbolic_build():
            return self.extended.local_value(value)  # Keras wants a batch to infer shapes from
        if axis is None:
            return super().reduce(reduce_op, value, axis)
        return self.extended.reduce_along(reduce_op, value, axis)

    def __repr__(self):
        workers = self.num_replicas_in_sync
        return f"SparseStrategy(communication={self.communication!r}) of {workers} worker(s)"

    def __copy__(self, memo=None):
        raise ValueError(
            "a SparseStrategy cannot be copied: variables belong to the strategy that made them. Create "
            "one per process and pass it on."
        )

    __deepcopy__ = __copy__


def _check_arguments(bucket_bytes, silence_limit, stall_limit, overlap, delay_rows):
    if bucket_bytes is not None and not is_size(bucket_bytes):
        raise ValueError(f"bucket_bytes={bucket_bytes!r} must be a whole number greater than 0.")
    if not _is_positive(silence_limit):
        raise ValueError(f"silence_limit={silence_limit!r} must be a number greater than 0.")
    if not (_is_positive(stall_limit) and stall_limit >= silence_limit):
        raise ValueError(
            f"stall_limit={stall_limit!r} must be a number of seconds, at least silence_limit="
            f"{silence_limit}."
        )
    if isinstance(overlap, WaitFree) and bucket_bytes is not None:
        raise ValueError(f"bucket_bytes={bucket_bytes}, overlap={overlap!r}: give one of them.")
    if not isinstance(overlap, Divided | WaitFree | None):
        raise TypeError(
            f"overlap={overlap!r} must be None, tss.overlap.WaitFree(), tss.overlap.DeAR() or "
            "tss.overlap.ShardedUpdate()."
        )
    if not isinstance(delay_rows, bool):
        raise TypeError(f"delay_rows={delay_rows!r} must be True or False.")


def _is_positive(number) -> bool:
    return isinstance(number, numbers.Real) and number > 0


def _require_same_program(settings, device, workers):
    packages = ("tensorflow", "keras", "tf_keras", "horovod", "tf_sparse_strategy")
    facts = {
        **settings,
        **{name: getattr(sys.modules.get(name), "__version__", None) for name in packages},
        "TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS"),
        "device": device.partition(":")[0],
    }
    agreement.require_same(
        facts, workers, "Run the same program, with the same packages, on all machines."
    )
