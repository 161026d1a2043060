"""Distributed training with TensorFlow and Keras over ordinary cloud Ethernet."""

from tf_sparse_strategy import callbacks, communication
from tf_sparse_strategy.strategy import SparseStrategy

__version__ = "0.1.0"
__all__ = ["SparseStrategy", "callbacks", "communication"]
