"""Which variables travel together in a divided update. Pure."""

import itertools
from collections.abc import Sequence

from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec

_FRONT = 8  # the bucket that nothing hides holds a part of `fusion` that is this many times smaller


def plan(specs: Sequence[TensorSpec], fusion: int) -> tuple[tuple[int, ...], ...]:
    """Positions of the variables in each bucket of at most `fusion` bytes, the last layers' first.

    The sum of the bucket of the first layers ends a step, and its all-gather begins the next: nothing hides
    them. What is within fusion/8 from the front, or else the first variable, therefore travels by itself; the
    others of that bucket are summed while the first layers' gradients are computed, and gathered while the
    first layers compute.

    Args:
      specs: of the variables, in the order of the forward pass.
      fusion: bytes, >= 1; a larger variable has a bucket of its own.

    Example:
      >>> specs = [TensorSpec(i, (n,), "float32", 4) for i, n in enumerate([1, 1, 8, 8])]
      >>> plan(specs, fusion=72)
      ((3, 2), (1, 0))
    """
    buckets = [bucket.positions for bucket in BucketPlan.build(specs, fusion).buckets]
    at = next((i for i, positions in enumerate(buckets) if 0 in positions), None)
    if at is None:  # no variables
        return ()
    bucket = buckets[at]
    sizes = itertools.accumulate(specs[p].size * specs[p].itemsize for p in reversed(bucket))
    front = max(1, sum(size <= fusion // _FRONT for size in sizes))
    parts = [part for part in (bucket[:-front], bucket[-front:]) if part]
    return tuple(buckets[:at] + parts + buckets[at + 1 :])
