"""Layers of Keras 3 whose variables are divided over the workers."""

from tf_sparse_strategy.embedding.layer import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
