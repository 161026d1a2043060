"""The ways of summing a gradient that are compared."""

import dataclasses
import functools
from collections.abc import Callable

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_sparse_strategy import residual
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import (
    DGC,
    Communication,
    Dense,
    Float16,
    GTopK,
    HiTopK,
    OkTopK,
    ShardedTopK,
    TopKAllGather,
    Torus2D,
    work,
)

RING, FP16, TORUS = "Horovod ring", "Horovod ring, fp16", "Torus2D"
CODED = {"wire_dtype": "float16", "index_coding": "delta"}
_SPARSE = {kind.__name__: kind for kind in (TopKAllGather, HiTopK, ShardedTopK, GTopK, OkTopK)}
_CODED = {
    "HiTopK, fp16 + delta": HiTopK,
    "ShardedTopK, fp16 + delta": ShardedTopK,
    "ShardedTopK applying 3 K, fp16 + delta": functools.partial(ShardedTopK, applied=3),
}
COMPARED, MOST = 0.01, 25_000_000  # the density at which these are summed, too, and of how many elements
_ALSO = {
    "OkTopK, flat": functools.partial(OkTopK, flat=True),
    "HiTopK, GaussianK": functools.partial(HiTopK, selector="gaussian"),
    "HiTopK, sampled": functools.partial(HiTopK, selector="sampled"),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of summing [n] over the workers.

    Args:
      step: [n] -> [n], one step; what is not sent stays in variables.
      scheme: what predicts it; None where nothing does, as Horovod's conversions.
      kept: what all workers' residuals add up to, [n].
      empty: drops it.
    """

    step: Callable[[tf.Tensor], tf.Tensor]
    scheme: Communication | None
    kept: Callable[[], tf.Tensor]
    empty: Callable[[], None] = lambda: None


Make = Callable[[], Method]  # when its turn comes: memory is short


def _horovod(compression, n: int, scheme: Communication | None) -> Method:
    name = f"{compression.__name__}{n}"

    def step(x):
        small, context = compression.compress(x)
        return compression.decompress(hvd.allreduce(small, op=hvd.Sum, name=name), context)

    return Method(step, scheme, kept=lambda: tf.zeros([n]))


def _of_scheme(scheme: Communication, n: int, comm: Collectives) -> Method:
    step, variables = work.step_of(scheme, n, comm)
    share = scheme.share(comm.topology)

    def kept():
        own = tf.zeros([n])
        if residual.RESIDUAL in variables:
            own = residual.flush(own, variables[residual.RESIDUAL], share)
        return comm.all_reduce(own)

    return Method(step, scheme, kept, functools.partial(work.empty, variables))


def exact(n: int, comm: Collectives) -> dict[str, Make]:
    """By name: those that sum all elements."""
    return {
        RING: functools.partial(_horovod, hvd.Compression.none, n, Dense()),
        FP16: functools.partial(_horovod, hvd.Compression.fp16, n, None),
        TORUS: functools.partial(_of_scheme, Torus2D(), n, comm),
        "Float16": functools.partial(_of_scheme, Float16(), n, comm),
        "Float16, Torus2D": functools.partial(_of_scheme, Float16(Torus2D()), n, comm),
    }


def sparse(n: int, density: float, comm: Collectives, momentum: float = 0.9) -> dict[str, Make]:
    """By name: those that send `density` n elements; `momentum` is DGC's."""
    schemes = {name: kind(density) for name, kind in _SPARSE.items()}
    schemes |= {name: kind(density, **CODED) for name, kind in _CODED.items()}
    if n > MOST and comm.topology.num_workers > 4:
        del schemes["OkTopK"]  # it takes the most memory, of eight workers together more than 24 GB
    if density == COMPARED and n <= MOST:
        schemes |= {name: kind(density) for name, kind in _ALSO.items()}
        schemes["DGC"] = DGC(density, momentum=momentum)
    return {name: functools.partial(_of_scheme, scheme, n, comm) for name, scheme in schemes.items()}
