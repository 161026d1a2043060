"""Communication that overlaps with computation."""

from tf_sparse_strategy.overlap.dear import DeAR

__all__ = ["DeAR"]
