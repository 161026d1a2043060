"""Optimizers of Keras 3 for embedding tables."""

from tf_sparse_strategy.embedding.lazy import Adagrad, LazyAdam

__all__ = ["Adagrad", "LazyAdam"]
