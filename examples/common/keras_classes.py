"""Layers and optimizers that come in two kinds, one for each Keras: those for `tf.keras`."""

from examples.common.garden import IS_LEGACY

if IS_LEGACY:
    from lars_pto.legacy_keras import LAMB, LARS
    from tf_sparse_strategy.legacy_keras import LazyAdam, ShardedEmbedding
else:
    from lars_pto import LAMB, LARS
    from tf_sparse_strategy.layers import ShardedEmbedding
    from tf_sparse_strategy.optimizers import LazyAdam

__all__ = ["LAMB", "LARS", "LazyAdam", "ShardedEmbedding"]
