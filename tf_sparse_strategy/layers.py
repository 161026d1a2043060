"""Layers of Keras 3 whose variables are divided over the workers."""

from tf_sparse_strategy.embedding.layer import ShardedEmbedding, lookup_together

__all__ = ["ShardedEmbedding", "lookup_together"]
