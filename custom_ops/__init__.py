"""C++ and CUDA operators; each works without the strategy and without Horovod."""

from custom_ops.entries.coding import decode_indices, encode_indices
from custom_ops.entries.entries import replace_entries, sum_entries
from custom_ops.momentum_update.momentum_update import momentum_update
from custom_ops.mstopk.mstopk import mstopk, mstopk_error_feedback
from custom_ops.permutation.permutation import permuted_index
from custom_ops.segmented_norms.segmented_norms import segmented_norms

__all__ = [
    "decode_indices",
    "encode_indices",
    "momentum_update",
    "mstopk",
    "mstopk_error_feedback",
    "permuted_index",
    "replace_entries",
    "segmented_norms",
    "sum_entries",
]
