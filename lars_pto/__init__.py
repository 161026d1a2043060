"""LARS and LAMB, and the parallel tensor operator that divides layer-wise work over workers.

For tf_keras, `from lars_pto.legacy_keras import LARS, LAMB`.
"""

from lars_pto.keras3 import LAMB, LARS
from lars_pto.parallel import parallel_tensor_op

__all__ = ["LAMB", "LARS", "parallel_tensor_op"]
