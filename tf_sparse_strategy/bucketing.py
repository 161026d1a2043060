"""Which gradients travel together.

Backpropagation yields the last layer's gradient first, so buckets are filled in reverse order of
the variables: the first bucket is complete, and on its way, while earlier layers still compute.
"""

import dataclasses
import itertools
import math
from collections.abc import Hashable, Sequence


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A gradient as the plan sees it: a stable key, a shape and a dtype name."""

    key: Hashable
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class BucketSpec:
    """Gradients of one dtype that are sent as one flat vector of N elements."""

    index: int
    positions: tuple[int, ...]
    tensors: tuple[TensorSpec, ...]

    @property
    def dtype(self) -> str:
        return self.tensors[0].dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor, in the bucket's order."""
        return tuple(tensor.size for tensor in self.tensors)

    @property
    def num_elements(self) -> int:
        """N."""
        return sum(self.sizes)

    @property
    def key(self) -> tuple:
        """Identifies the bucket's content: state kept for it is valid for this key only."""
        return self.tensors


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """All buckets of one optimizer's gradients.

    Args:
      buckets: in the order in which they become ready.
    """

    buckets: tuple[BucketSpec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors, in the order of the model's variables."""
        placed = (zip(b.positions, b.tensors, strict=True) for b in self.buckets)
        return tuple(tensor for _, tensor in sorted(itertools.chain(*placed), key=lambda x: x[0]))

    @classmethod
    def build(cls, tensors: Sequence[TensorSpec], max_bytes: int) -> "BucketPlan":
        """Packs tensors, last first, into buckets of at most `max_bytes`.

        A tensor larger than `max_bytes` has a bucket of its own; a bucket holds one dtype; empty
        tensors travel with their neighbours. Depends on nothing but its arguments, so that all
        workers make the same plan.

        Args:
          tensors: gradients in the order of the model's variables.
          max_bytes: size limit of a bucket, bytes, >= 1.

        Raises:
          ValueError: `max_bytes` is not positive.

        Example:
          >>> specs = [TensorSpec(i, (n,), "float32", 4) for i, n in enumerate([5, 1, 1])]
          >>> [bucket.positions for bucket in BucketPlan.build(specs, max_bytes=8).buckets]
          [(2, 1), (0,)]
        """
        if max_bytes < 1:
            raise ValueError(f"bucket_bytes={max_bytes} must be at least 1 byte; try 32 << 20.")
        groups: list[list[int]] = []
        open_groups: dict[str, tuple[list[int], int]] = {}
        for position in reversed(range(len(tensors))):
            tensor = tensors[position]
            nbytes = tensor.size * tensor.itemsize
            group, used = open_groups.get(tensor.dtype, (None, 0))
            if group is None or used + nbytes > max_bytes:
                group, used = [], 0
                groups.append(group)
            group.append(position)
            open_groups[tensor.dtype] = (group, used + nbytes)
        return cls(
            tuple(
                BucketSpec(index, tuple(group), tuple(tensors[p] for p in group))
                for index, group in enumerate(groups)
            )
        )
