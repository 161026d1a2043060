"""Distributed training with TensorFlow and Keras over ordinary cloud Ethernet."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_sparse_strategy import callbacks, communication, layers, optimizers, overlap
    from tf_sparse_strategy.embedding.conversion import shard_embeddings
    from tf_sparse_strategy.strategy import SparseStrategy

__version__ = "0.1.0"
__all__ = [
    "SparseStrategy",
    "callbacks",
    "communication",
    "layers",
    "optimizers",
    "overlap",
    "shard_embeddings",
]

_HOMES = {
    "SparseStrategy": "tf_sparse_strategy.strategy",
    "shard_embeddings": "tf_sparse_strategy.embedding.conversion",
}


# On first use: `tss --help` must not wait for TensorFlow's import.
def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
