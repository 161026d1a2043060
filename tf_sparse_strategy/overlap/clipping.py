"""Clipping gradients of which each worker holds chunks, by the norms of the wholes."""

from typing import Any

import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding.clipping import global_factor


def clip(optimizer: Any, owned: list[tf.Tensor], collectives: Collectives) -> list[tf.Tensor]:
    """`owned`, clipped as `optimizer` is set to clip the wholes.

    Args:
      optimizer: has clipnorm, global_clipnorm and clipvalue; the first that is set counts.
      owned: this worker's chunk of each summed gradient, padded with zeros.
      collectives: of this worker; norms cost one all-reduce of a float32 per gradient.
    """
    if optimizer.clipnorm:
        norms = tf.unstack(tf.sqrt(_squares(owned, collectives)), num=len(owned))
        limit = optimizer.clipnorm
        return [g * limit / tf.cast(tf.maximum(n, limit), g.dtype) for g, n in zip(owned, norms, strict=True)]
    if optimizer.global_clipnorm:
        norm = tf.sqrt(tf.reduce_sum(_squares(owned, collectives)))
        factor = global_factor(norm, optimizer.global_clipnorm)
        return [g * tf.cast(factor, g.dtype) for g in owned]
    if optimizer.clipvalue:
        limit = optimizer.clipvalue
        return [tf.clip_by_value(g, -limit, limit) for g in owned]
    return owned


def _squares(owned, collectives):
    mine = tf.stack([tf.reduce_sum(tf.square(tf.cast(g, tf.float32))) for g in owned])
    return collectives.all_reduce(mine, purpose="norms")
