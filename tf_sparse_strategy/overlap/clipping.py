"""Clipping gradients of which each worker holds chunks, by the norms of the wholes."""

from typing import Any

import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding.clipping import global_factor, scaled
from tf_sparse_strategy.gradient_kinds import sum_of_squares


def clip(
    optimizer: Any, owned: list[tf.Tensor], collectives: Collectives, others: tf.Tensor | float = 0.0
) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    """(`owned`, clipped as `optimizer` is set to clip the wholes; the factor of all gradients, if any)

    Args:
      optimizer: has clipnorm, global_clipnorm and clipvalue; the first that is set counts.
      owned: this worker's chunk of each summed gradient, padded with zeros.
      collectives: of this worker; norms cost one all-reduce of a float64 per gradient.
      others: sum of the squares of the gradients that are not divided, for a norm of all of them.
    """
    if optimizer.clipnorm:
        limit = optimizer.clipnorm
        factors = limit / tf.maximum(tf.sqrt(_squares(owned, collectives)), limit)
        factors = tf.unstack(factors, num=len(owned))
        return [g * tf.cast(f, g.dtype) for g, f in zip(owned, factors, strict=True)], None
    if optimizer.global_clipnorm:
        norm = tf.sqrt(tf.reduce_sum(_squares(owned, collectives)) + others)
        factor = global_factor(norm, optimizer.global_clipnorm)
        return scaled(owned, factor), factor
    if optimizer.clipvalue:
        limit = optimizer.clipvalue
        return [tf.clip_by_value(g, -limit, limit) for g in owned], None
    return owned, None


def _squares(owned, collectives):
    mine = tf.stack([sum_of_squares(g) for g in owned])
    return collectives.all_reduce(mine, purpose="norms")
