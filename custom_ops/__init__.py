"""C++ and CUDA operators; each works without the strategy and without Horovod."""

from custom_ops.mstopk.mstopk import mstopk, mstopk_error_feedback
from custom_ops.segmented_norms.segmented_norms import segmented_norms

__all__ = ["mstopk", "mstopk_error_feedback", "segmented_norms"]
