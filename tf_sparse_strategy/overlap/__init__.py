"""Updates divided over the workers, and communication that overlaps with computation."""

from tf_sparse_strategy.overlap.dear import DeAR
from tf_sparse_strategy.overlap.sharded import ShardedUpdate

__all__ = ["DeAR", "ShardedUpdate"]
