"""WFBP with tensor fusion: what `DeAR` is to be compared with."""

import dataclasses

from tf_sparse_strategy.overlap import search
from tf_sparse_strategy.overlap.divided import is_size


@dataclasses.dataclass(frozen=True)
class WaitFree:
    """Sums each bucket of gradients as soon as the backward pass has computed it.

        backward:   g = all_reduce(gradients)      of the last layers first, while the others compute
        update:     weights = optimizer(weights, g)

    That is what a strategy without `overlap` does in buckets of `bucket_bytes`: another name of it, with
    `DeAR`'s name and default of a bucket's size (`Dense`'s own is smaller). Bytes per worker: those of
    `communication`, all of which must hide behind the backward pass.

    When not to use it: where the sum takes longer than the backward pass, half of it can hide behind the
    forward pass as well (`DeAR`). Works with all communication, optimizers and Kerases.

    Args:
      fusion: bytes of a bucket, at most; a larger variable has one of its own. Default 25 MiB.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(overlap=tss.overlap.WaitFree(fusion=4 << 20))

    Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on
    GPU Clusters", ATC 2017, section 3.1; with fusion as in Zhang et al., ICDCS 2023, section II.
    """

    fusion: int = search.START

    def __post_init__(self):
        if not is_size(self.fusion):
            raise ValueError(
                f"fusion={self.fusion!r} must be a number of bytes >= 1, e.g. 25 << 20. Sizes are tuned for "
                "DeAR and ShardedUpdate only."
            )
