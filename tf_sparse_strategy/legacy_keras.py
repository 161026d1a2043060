"""ShardedEmbedding and LazyAdam for tf_keras (`TF_USE_LEGACY_KERAS=1`)."""

from tf_sparse_strategy.embedding.legacy_keras import LazyAdam, ShardedEmbedding
from tf_sparse_strategy.embedding.table import lookup_together

__all__ = ["LazyAdam", "ShardedEmbedding", "lookup_together"]
