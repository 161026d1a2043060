"""Updates divided over the workers, and communication that overlaps with computation."""

from tf_sparse_strategy.overlap.dear import DeAR
from tf_sparse_strategy.overlap.sharded import ShardedUpdate
from tf_sparse_strategy.overlap.wait_free import WaitFree

__all__ = ["DeAR", "ShardedUpdate", "WaitFree"]
