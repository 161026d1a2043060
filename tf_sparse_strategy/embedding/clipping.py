"""Clipping summed gradients of which each worker holds parts, by the norms of the wholes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.gradient_kinds import (
    clips,
    coalesced,
    has_constant_indices,
    is_set,
    of_present,
    sum_of_squares,
)
from tf_sparse_strategy.hooking import while_set


class _Applying(threading.local):
    clipped = False  # whether what this thread applies is clipped already


_applying = _Applying()


def clip(
    optimizer: Any, gradients: Sequence, variables: Sequence, clip_whole: Callable[[list], list]
) -> list:
    """`gradients`, clipped as `optimizer` is set to, as one process with whole tables would.

    Args:
      optimizer: has clipnorm, global_clipnorm and clipvalue; the first that is set counts.
      gradients: summed over the workers; of slices, each id once.
      variables: of the gradients; at least one is a slice.
      clip_whole: the optimizer's own way, for the others.
    """
    held = [slices.of(variable) for variable in variables]
    table = next(h for h in held if h is not None)
    of_slices = [g for g, h in zip(gradients, held, strict=True) if h is not None]
    whole = [g for g, h in zip(gradients, held, strict=True) if h is None]
    if is_set(optimizer.global_clipnorm) and not is_set(optimizer.clipnorm):
        gradients, squares = with_squares(gradients, variables)
        return scaled(gradients, global_factor(tf.sqrt(squares), optimizer.global_clipnorm))
    of_slices, _ = clip_parts(optimizer, of_slices, table.slices.collectives)
    order = iter(clip_whole(whole)), iter(of_slices)
    return [next(order[h is not None]) for h in held]


def clip_parts(
    optimizer: Any, parts: Sequence, collectives: Collectives, others: tf.Tensor | float = 0.0
) -> tuple[list, tf.Tensor | None]:
    """(`parts`, clipped as `optimizer` is set to clip the wholes; the factor of all gradients, if any).

    Args:
      optimizer: has clipnorm, global_clipnorm and clipvalue; the first that is set counts.
      parts: of each summed gradient what this worker holds, each id once.
      collectives: of this worker; norms cost one all-reduce of a float64 per gradient.
      others: sum of the squares of the gradients that are not divided, for a norm of all of them.
    """
    if is_set(limit := optimizer.clipnorm):
        factors = limit / tf.maximum(tf.sqrt(_squares(parts, collectives)), limit)
        factors = tf.unstack(factors, num=len(parts))
        return [_scaled(g, f) for g, f in zip(parts, factors, strict=True)], None
    if is_set(limit := optimizer.global_clipnorm):
        norm = tf.sqrt(tf.reduce_sum(_squares(parts, collectives)) + others)
        factor = global_factor(norm, limit)
        return scaled(parts, factor), factor
    if is_set(limit := optimizer.clipvalue):
        return [_mapped(g, lambda x: tf.clip_by_value(x, -limit, limit)) for g in parts], None
    return list(parts), None


def with_squares(
    gradients: Sequence, variables: Sequence, clips_rows: bool = False
) -> tuple[list, tf.Tensor]:
    """(`gradients`, the sum of the squares of all their elements, float64 []).

    Beside slices of tables, and where the optimizer `clips_rows`, repeated rows are added up first. Without,
    sparse gradients are treated as by Keras's clipping: repeated rows count one by one, and the results are
    dense.

    Args:
      gradients: summed over the workers; of slices, each id once.
      variables: of the gradients; the squares of slices are summed over the workers.
      clips_rows: whether the optimizer does, as `LazyAdam`, which would move all rows by a dense gradient.
    """
    held = [slices.of(variable) for variable in variables]
    table = next((h for h in held if h is not None), None)
    if table is not None or clips_rows:
        gradients = [coalesced(g) if h is None else g for g, h in zip(gradients, held, strict=True)]
    squares = [sum_of_squares(g) for g, h in zip(gradients, held, strict=True) if h is None]
    if table is None:
        return gradients if clips_rows else [tf.convert_to_tensor(g) for g in gradients], tf.add_n(squares)
    of_slices = [g for g, h in zip(gradients, held, strict=True) if h is not None]
    summed = _squares(of_slices, table.slices.collectives)
    return gradients, tf.add_n(squares + tf.unstack(summed, num=len(of_slices)))


def once_each(optimizer: Any, pairs: Sequence[tuple]) -> list[tuple]:
    """(gradient, variable) `pairs`, with fewer rows to send where `optimizer` adds up those of one id.

    Or where it might as well: what Keras's SGD makes of rows is what it makes of their sum.
    """
    is_linear = type(optimizer) is keras.optimizers.SGD and not clips(optimizer)
    if not (is_linear or getattr(optimizer, "clips_rows", False)):
        return list(pairs)

    def as_sent(gradient, variable):
        is_whole = isinstance(gradient, tf.IndexedSlices) and slices.of(variable) is None
        # Rows of the program come once anyway.
        return coalesced(gradient) if is_whole and not has_constant_indices(gradient) else gradient

    return [(as_sent(*pair), pair[1]) for pair in pairs]


def scaled(gradients: Sequence, factor: tf.Tensor) -> list:
    """`gradients` times `factor`, each in its dtype."""
    return [_scaled(g, factor) for g in gradients]


def clip_and_apply(original, optimizer, grads_and_vars, *args, **kwargs):
    """A hook on tf_keras, which clips sums, but would take the norms of slices."""
    pairs = list(grads_and_vars)
    if slices.first(v for g, v in pairs if g is not None) is None:
        return original(optimizer, pairs, *args, **kwargs)

    def clipped(present):
        return clip(optimizer, *zip(*present, strict=True), clip_whole=optimizer._clip_gradients)

    pairs = of_present(clipped, pairs)
    with while_set(_applying, clipped=True):
        return original(optimizer, pairs, *args, **kwargs)


def clip_once(original, optimizer, gradients):
    """A hook on tf_keras: nothing, after `clip_and_apply` did it."""
    return gradients if _applying.clipped else original(optimizer, gradients)


def global_factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """What gradients of this norm together are multiplied by; NaN if it is not finite, as in Keras."""
    return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)


def _squares(parts, collectives) -> tf.Tensor:
    """float64 [n]: the sum of squares of each whole, by one all-reduce."""
    return collectives.all_reduce(tf.stack([sum_of_squares(g) for g in parts]), purpose="norms")


def _mapped(gradient, function):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _scaled(gradient, factor):
    return _mapped(gradient, lambda x: x * tf.cast(factor, x.dtype))
