"""Layers of Keras 3 whose variables are divided over the workers; for tf_keras see legacy_keras.py."""

from tf_sparse_strategy.embedding.layer import ShardedEmbedding
from tf_sparse_strategy.embedding.table import lookup_together

__all__ = ["ShardedEmbedding", "lookup_together"]
