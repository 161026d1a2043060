"""C++ and CUDA operators; each works without the strategy and without Horovod."""

from custom_ops.mstopk.mstopk import mstopk, mstopk_error_feedback

__all__ = ["mstopk", "mstopk_error_feedback"]
