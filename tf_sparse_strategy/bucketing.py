"""Which gradients travel together.

Backpropagation yields the last layer's gradient first, so buckets are filled in reverse order of
the variables: the first bucket is complete, and on its way, while earlier layers still compute.
"""

import dataclasses
import itertools
import math
from collections.abc import Hashable, Sequence, Set

# TensorFlow's shapes and our indices are int32; what is left below 2^31 is room for padding to whole shards.
MAX_ELEMENTS = 2**31 - 2**16

# Elements of the largest vector that is as good as free beside a model's matrices.
_SMALL = 1 << 14


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

    @property
    def is_small_vector(self) -> bool:
        """Whether it is of rank 0 or 1 and of at most 16,384 elements: a bias, or of a normalization."""
        return len(self.shape) <= 1 and self.size <= _SMALL


@dataclasses.dataclass(frozen=True)
class BucketSpec:
    """Gradients of one dtype that are sent as one flat vector of N elements.

    Args:
      positions: in the list of gradients.
      tensors: at these.
      is_exact: whether nothing is to be dropped of their sum, whatever the scheme.
    """

    positions: tuple[int, ...]
    tensors: tuple[TensorSpec, ...]
    is_exact: bool = False

    @property
    def dtype(self) -> str:
        return self.tensors[0].dtype

    @property
    def has_small_vectors(self) -> bool:
        return any(tensor.is_small_vector for tensor in self.tensors)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor, in the bucket's order."""
        return tuple(tensor.size for tensor in self.tensors)

    @property
    def num_elements(self) -> int:
        """N."""
        return sum(self.sizes)


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """All buckets of one optimizer's gradients.

    Args:
      buckets: in the order in which they become ready; exact ones, which wait for the first layer's, last.
    """

    buckets: tuple[BucketSpec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors, in the order of the model's variables."""
        placed = (zip(b.positions, b.tensors, strict=True) for b in self.buckets)
        return tuple(tensor for _, tensor in sorted(itertools.chain(*placed), key=lambda x: x[0]))

    @property
    def keys(self) -> set[Hashable]:
        """Of the variables whose gradients they are."""
        return {tensor.key for tensor in self.tensors}

    def has_any(self, keys: Set[Hashable]) -> bool:
        """Whether a gradient of one of these variables is among them."""
        return not keys.isdisjoint(self.keys)

    @classmethod
    def build(
        cls, tensors: Sequence[TensorSpec], max_bytes: int, exact_vectors: bool = False
    ) -> "BucketPlan":
        """Packs tensors, last first, into buckets of at most `max_bytes`.

        A tensor larger than `max_bytes` has a bucket of its own; a bucket holds one dtype; empty
        tensors travel with their neighbours; no bucket has more than 2^31 - 2^16 elements. Depends on
        nothing but its arguments, so that all workers make the same plan.

        Args:
          tensors: gradients in the order of the model's variables.
          max_bytes: size limit of a bucket, bytes, >= 1.
          exact_vectors: whether small vectors are in buckets of their own, the last, that are exact.

        Raises:
          ValueError: `max_bytes` is not positive, or a tensor has too many elements.

        Example:
          >>> specs = [TensorSpec(i, (n,), "float32", 4) for i, n in enumerate([5, 1, 1])]
          >>> [bucket.positions for bucket in BucketPlan.build(specs, max_bytes=8).buckets]
          [(2, 1), (0,)]
        """
        if max_bytes < 1:
            raise ValueError(f"bucket_bytes={max_bytes} must be at least 1 byte; try 32 << 20.")
        apart = [exact_vectors and tensor.is_small_vector for tensor in tensors]
        groups: list[list[int]] = []
        open_groups: dict[tuple[str, bool], tuple[list[int], int]] = {}
        for position in sorted(reversed(range(len(tensors))), key=apart.__getitem__):
            tensor, kind = tensors[position], (tensors[position].dtype, apart[position])
            if tensor.size > MAX_ELEMENTS:
                raise ValueError(
                    f"the gradient of variable {tensor.key!r} has {tensor.size} elements, shape "
                    f"{tensor.shape}; one message holds at most {MAX_ELEMENTS}. Split the variable."
                )
            group, used = open_groups.get(kind, (None, 0))
            limit = min(max_bytes // tensor.itemsize, MAX_ELEMENTS)
            if group is None or used + tensor.size > limit:
                group, used = [], 0
                groups.append(group)
            group.append(position)
            open_groups[kind] = (group, used + tensor.size)
        return cls(
            tuple(
                BucketSpec(tuple(group), tuple(tensors[p] for p in group), apart[group[0]])
                for group in groups
            )
        )
