"""The strategy that settings ask for."""

import dataclasses

import tensorflow as tf

import tf_sparse_strategy as tss
from examples.common.settings import Settings
from tf_sparse_strategy.communication import Communication, HiTopK, Piecewise


def communication(settings: Settings) -> Communication:
    """How gradients are summed: first, if so asked, only their largest entries."""
    after = tss.communication.get(settings.comm)
    if settings.density is not None and hasattr(after, "density"):
        after = dataclasses.replace(after, density=settings.density)
    if not settings.sparse_epochs:
        return after
    sparse = HiTopK(settings.density, wire_dtype="float16", index_coding="delta")
    return Piecewise([(0, sparse), (settings.sparse_epochs, after)])


def start(settings: Settings, **more) -> tss.SparseStrategy:
    """Starts this worker; to be called before anything touches an accelerator.

    Args:
      settings: of all recipes.
      more: other arguments of SparseStrategy.
    """
    tf.get_logger().setLevel("WARNING")  # P workers would repeat TensorFlow's notes
    overlap = tss.overlap.DeAR() if settings.overlap == "dear" else None
    return tss.SparseStrategy(communication=communication(settings), overlap=overlap, **more)
