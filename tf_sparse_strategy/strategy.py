"""SparseStrategy: the public face."""


import tensorflow as tf

from tf_sparse_strategy import collectives, keras_hooks, saving
from tf_sparse_strategy import communication as communication_lib
from tf_sparse_strategy.communication import Communication
from tf_sparse_strategy.extended import StrategyExtended
from tf_sparse_strategy.memory import Memory
from tf_sparse_strategy.topology import Topology


class SparseStrategy(tf.distribute.MirroredStrategy):
    """Synchronous data-parallel training over processes, one replica per process.

    With P workers, each computes the gradient of its share of the global batch; the sum over workers

        g = sum_r g_r

    is applied by every worker to its own copy of the variables, which start from rank 0's values and
    stay identical. Launched plainly, `python train.py` is the one-worker case of the same code.

    Args:
      communication: how gradients are summed: "dense" (default), "torus2d", or an instance from
        `tss.communication`.
      bucket_bytes: gradients travel in buckets of at most this many bytes, so that the last layers'
        are on their way while the first layers still compute. Default 32 MiB.

    Raises:
      ValueError: the communication is unknown, or cannot run on this placement of workers.
      RuntimeError: accelerators were not limited to one per process.

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
        self, communication: str | Communication = "dense", bucket_bytes: int = 32 << 20
    ):
        scheme = communication_lib.get(communication)
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes={bucket_bytes} must be at least 1; the default is 32 << 20.")
        keras_hooks.install()
        saving.install()
        collectives.start()
        device = _pin_device()
        topology = collectives.find_topology()
        scheme.validate(topology)
        extended = StrategyExtended(
            self, collectives.Collectives(topology), scheme, bucket_bytes, device
        )
        # MirroredStrategy's own constructor would claim all local devices. The name is inherited
        # because both Kerases admit only strategies of that class to loss scaling and backups.
        tf.distribute.Strategy.__init__(self, extended)

    @property
    def topology(self) -> Topology:
        """Where this worker stands among all workers."""
        return self.extended.collectives.topology

    @property
    def communication(self) -> Communication:
        """How gradients are summed."""
        return self.extended.gradients.communication

    @property
    def residual(self) -> Memory:
        """What sparse communication has not sent yet; make it part of a `tf.train.Checkpoint`."""
        return self.extended.gradients.memory

    @property
    def cluster_resolver(self):
        """None: the launcher, not TF_CONFIG, describes the cluster."""
        return None

    def run(self, fn, args=(), kwargs=None, options=None):
        """Calls `fn` on this worker's replica; the P calls together are one step.

        See `tf.distribute.Strategy.run`. `predict` gets every worker's rows, in order.
        """
        outputs = super().run(fn, args=args, kwargs=kwargs, options=options)
        if not keras_hooks.is_predict_step(fn):
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
        """
        if keras_hooks.is_symbolic_build():
            return self.extended.local_value(value)  # Keras wants a batch to infer shapes from
        if axis is None:
            return super().reduce(reduce_op, value, axis)
        return self.extended.reduce_along(reduce_op, value, axis)

    def __copy__(self):
        raise _copy_error()

    def __deepcopy__(self, memo):
        raise _copy_error()


def _copy_error() -> ValueError:
    return ValueError(
        "a SparseStrategy cannot be copied: variables belong to the strategy that made them. Create "
        "one per process and pass it on."
    )


def _pin_device() -> str:
    """Limits this process to the accelerator of its local rank; returns the device's name."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "/CPU:0"
    mine = gpus[collectives.local_rank() % len(gpus)]
    try:
        tf.config.set_visible_devices(mine, "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            "SparseStrategy must be created before TensorFlow touches a GPU, so that each process "
            f"takes only the one of its local rank ({error}). Create the strategy first, or set "
            "CUDA_VISIBLE_DEVICES per process."
        ) from error
    return "/GPU:0"
