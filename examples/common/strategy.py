"""The strategy that settings ask for."""

import dataclasses

import tensorflow as tf

import tf_sparse_strategy as tss
from examples.common.settings import Settings
from tf_sparse_strategy.communication import Communication, HiTopK, Piecewise


def communication(settings: Settings) -> Communication:
    """How gradients are summed: first, if so asked, only their largest entries.

    Raises:
      ValueError: there is a density and nothing sparse.
    """
    after, density = tss.communication.get(settings.comm), settings.density
    sparse = hasattr(after, "density")
    if sparse and density is not None:
        after = dataclasses.replace(after, density=density)
    if settings.sparse_epochs:
        return Piecewise([(0, HiTopK(density)), (settings.sparse_epochs, after)])
    if density is not None and not sparse:
        raise ValueError(
            f"density={density} is that of sparse epochs, or of a sparse comm, but sparse_epochs=0 and "
            f"comm={settings.comm!r}: give --sparse_epochs, or --density=none."
        )
    return after


def start(settings: Settings, **more) -> tss.SparseStrategy:
    """Starts this worker; to be called before anything touches an accelerator.

    Args:
      settings: of all recipes.
      more: other arguments of SparseStrategy.
    """
    tf.get_logger().setLevel("WARNING")  # P workers would repeat TensorFlow's notes
    overlap = tss.overlap.DeAR() if settings.overlap == "dear" else None
    return tss.SparseStrategy(communication=communication(settings), overlap=overlap, **more)
