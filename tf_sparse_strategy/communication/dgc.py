"""DGC: top-k with the momentum before the selection, as Deep Gradient Compression corrects it."""

import dataclasses

import keras
import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.communication.hitopk import HiTopK
from tf_sparse_strategy.communication.messages import take_out
from tf_sparse_strategy.gradient_kinds import is_set
from tf_sparse_strategy.residual import RESIDUAL, VELOCITY
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class DGC(HiTopK):
    """`HiTopK` of velocities instead of gradients: delayed entries have gathered their momentum on the way.

    Momentum in the optimizer acts on what arrives, late and in lumps. Here each holder i (a node, or a
    worker) keeps a velocity u_i beside its residual r_i, and both are cleared where something is sent:

        g_i <- g_i min(1, clip_norm P^(-1/2) / ||g_i||)      of each worker, before anything is summed
        u_i <- momentum u_i + s_i                            s_i the sum of the node's g_i
        a_i = r_i + u_i  (nesterov: r_i + momentum u_i + s_i)
        c_i = top_K(a_i),   r_i <- a_i - c_i,   u_i <- 0 where c_i is not       ("momentum factor masking")

    and the optimizer applies c_1 + ... + c_H by plain SGD. Bytes and messages are those of `HiTopK`. For the
    density warm-up see `Piecewise`.

    When not to use it: with any optimizer but SGD without momentum, which would apply momentum twice, or
    rescale what has waited; that is refused, and so are clipping by the optimizer, error_feedback=False, one
    node, where nothing waits, `tf.IndexedSlices`, which are gathered whole, gradients that are no floats of
    16 or 32 bits, and tf_keras, which does not say who asks for the sums. Weight decay in the loss
    is delayed like any gradient; use the optimizer's.

    Args:
      density, error_feedback, wire_dtype, index_coding, selector: see `HiTopK`.
      momentum: of the velocity, 0 <= momentum < 1; default 0.9.
      nesterov: whether a step looks ahead; default False.
      clip_norm: None (default), or the norm that a bucket's summed gradient is expected to keep below.

    Raises:
      ValueError: an argument is out of range; or, later, the placement of workers, the optimizer or a
        gradient is refused.

    Example:
      >>> from tf_sparse_strategy.communication import DGC, Piecewise
      >>> densities = [0.25, 0.0625, 0.0156, 0.004, 0.001]
      >>> warm_up = Piecewise([(epoch, DGC(density)) for epoch, density in enumerate(densities)])

    Source: Lin et al., "Deep Gradient Compression", ICLR 2018, sections 3.2 and 3.3.
    """

    momentum: float = 0.9
    nesterov: bool = False
    clip_norm: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"DGC(momentum={self.momentum!r}) must be in [0, 1), e.g. 0.9.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"DGC(clip_norm={self.clip_norm!r}) must be None or above 0.")
        if not self.error_feedback:
            raise ValueError("DGC(error_feedback=False) would correct what is dropped; use HiTopK.")

    def validate(self, topology: Topology) -> None:
        if self.share(topology).holders == 1:
            raise ValueError(
                "communication=DGC(...) needs two nodes: on one all is sent at once, and momentum is the "
                "optimizer's. Use communication='dense' and SGD(momentum=...)."
            )
        super().validate(topology)

    def check_optimizer(self, optimizer) -> None:
        if optimizer is None:
            raise ValueError(
                "communication=DGC(...) must know the optimizer, and tf_keras does not tell it. Use Keras 3, "
                "or HiTopK."
            )
        if not isinstance(optimizer, keras.optimizers.SGD) or optimizer.momentum:
            name, momentum = type(optimizer).__name__, getattr(optimizer, "momentum", None)
            raise ValueError(
                f"communication=DGC(...) applies momentum itself; the optimizer is {name} with "
                f"momentum={momentum}. Use keras.optimizers.SGD(learning_rate), without momentum, or HiTopK."
            )
        names = ("clipnorm", "global_clipnorm", "clipvalue")
        limits = {name: getattr(optimizer, name) for name in names}
        told = [f"{name}={limit}" for name, limit in limits.items() if is_set(limit)]
        if told:
            raise ValueError(
                f"communication=DGC(...): the optimizer's {', '.join(told)} would cut off what has waited. "
                "Use DGC(clip_norm=...), which clips before, or HiTopK."
            )

    @property
    def _is_dense(self) -> bool:
        return False  # `Dense` has no momentum

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        variables = super().state(bucket, topology)
        if RESIDUAL in variables:
            variables[VELOCITY] = plain_variable(tf.zeros_like(variables[RESIDUAL]))
        elif bucket.num_elements:
            raise ValueError(
                f"communication=DGC(...): gradients of dtype {bucket.dtype} are summed exactly, and would "
                "get no momentum. Use float32 variables, or HiTopK."
            )
        return variables

    def reduce(self, bucket, state, collectives) -> tf.Tensor:
        if self.clip_norm is not None:
            limit = self.clip_norm / collectives.topology.num_workers**0.5
            bucket = tf.cast(tf.clip_by_norm(tf.cast(bucket, tf.float32), limit), bucket.dtype)
        return super().reduce(bucket, state, collectives)

    def _sum_shard(self, x, state, share, collectives):
        velocity = self.momentum * state[VELOCITY] + x
        ahead = self.momentum * velocity + x if self.nesterov else velocity
        message, kept, indices = self._select(ahead, state)
        summed, finite = self._exchange(message, x.shape[0], share, collectives)
        masked = take_out(velocity, indices, None)
        return summed, {RESIDUAL: kept, VELOCITY: masked}, finite
