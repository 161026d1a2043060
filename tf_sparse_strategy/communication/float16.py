"""Float16: an exact scheme's sum, whose elements travel in 16 bits."""

import dataclasses

import tensorflow as tf

from tf_sparse_strategy import cost_model, wire
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import Dense
from tf_sparse_strategy.communication.torus2d import Torus2D
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.topology import Topology


@dataclasses.dataclass(frozen=True)
class Float16(Communication):
    """Sums float32 gradients as `scheme` does, but each worker's, and each sum of some, rounded to float16.

    In as many messages half the bytes; what is beyond the largest float16 that P of them may add up to is
    cut, so that finite gradients have a finite sum:

        u = x_1 + ... + x_P,   x_p = float16(min(max(g_p, -L), L)),   L = 65504 / P (1 + 2^-11)^-P

    Eleven bits of an element remain, of one below 6e-5 fewer, and of one below 3e-8 nothing, and of a sum
    fewer the more workers add to it, or cancel; unlike a sparse scheme it keeps nothing for later. A step
    that takes residuals along, after a sparse scheme, is summed by `scheme`, and so are gradients of other
    dtypes.

    When not to use it: where the exact sum hides behind the computation, or links are fast: cutting and
    converting costs some six passes over the gradient; where gradients are tiny, as of a loss that is a mean
    over very many elements; and where sparse sums will do, which send a few percent of this.

    Args:
      scheme: `Dense()`, the default, or `Torus2D()`.

    Raises:
      TypeError: `scheme` is another.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> from tf_sparse_strategy.communication import Float16, Torus2D
      >>> strategy = tss.SparseStrategy(communication=Float16(Torus2D()))

    Source: Horovod's `Compression.fp16`, which does not cut.
    """

    scheme: Dense | Torus2D = Dense()

    def __post_init__(self):
        if not isinstance(self.scheme, (Dense, Torus2D)):
            raise TypeError(
                f"Float16(scheme={self.scheme!r}) must be Dense() or Torus2D(). Sparse schemes have an "
                'argument: HiTopK(0.01, wire_dtype="float16").'
            )

    @property
    def bucket_bytes(self) -> int:
        return self.scheme.bucket_bytes

    def validate(self, topology: Topology) -> None:
        self.scheme.validate(topology)

    def reduce(self, bucket, state, collectives) -> tf.Tensor:
        if bucket.dtype != tf.float32 or state.lossless:
            return self.scheme.reduce(bucket, state, collectives)
        narrow = wire.narrow(bucket, tf.float16, collectives.topology.num_workers)
        return tf.cast(self.scheme.reduce(narrow, state, collectives), tf.float32)

    def cost(self, n: int, topology: Topology, model: LinkModel) -> Cost:
        """Half the bytes; converting and adding up takes what is calibrated as selecting."""
        return self.scheme.cost(n, topology, model, element_bytes=2) + cost_model.selection(n, model)
