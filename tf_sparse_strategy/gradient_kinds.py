"""What a gradient may be: a tensor, `tf.IndexedSlices` of a table's rows, or None."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf


def of_present(function: Callable[[list], Sequence], pairs: Iterable[tuple]) -> list[tuple]:
    """The (gradient, variable) `pairs`, with what `function` makes of those that have a gradient.

    Args:
      function: from pairs whose gradients are not None to as many gradients.
      pairs: None where a variable has no gradient, and in the result.
    """
    pairs = list(pairs)
    made = iter(function([pair for pair in pairs if pair[0] is not None]))
    return [(None if gradient is None else next(made), variable) for gradient, variable in pairs]


def values_of(gradient: Any) -> tf.Tensor:
    """The elements of a tensor or `tf.IndexedSlices`."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def coalesced(gradient):
    """`tf.IndexedSlices` with the rows of one index added up, fewer bytes to send; else `gradient`.

    Not for a variable that all workers hold, under an optimizer that does not do so itself and is not linear:
    Adam of Keras 3 would then differ from what one process computes from the same rows.
    """
    if not isinstance(gradient, tf.IndexedSlices) or is_coalesced(gradient):
        return gradient
    indices, place = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def is_coalesced(gradient: tf.IndexedSlices) -> bool:
    """Whether no index is repeated, as far as a function's graph tells: `tf.unique` made them."""
    indices = gradient.indices
    return tf.is_symbolic_tensor(indices) and indices.op.type == "Unique" and indices.value_index == 0


def has_constant_indices(gradient: tf.IndexedSlices) -> bool:
    """Whether the program alone, no data, decides which rows these are, as a function's graph tells.

    So are positions that a model looks up in a table: the same in each row of a batch, and on all workers.
    """
    indices = gradient.indices
    if tf.executing_eagerly() or not indices.shape.num_elements():
        return False
    left, seen = [indices], set()
    while left:
        x = left.pop()
        if not tf.is_symbolic_tensor(x) or (x.graph, x.name) in seen:  # a tensor, or variable, of Python's
            continue
        seen.add((x.graph, x.name))
        if x.op.type == "Placeholder":
            captures = getattr(x.graph, "captures", ())
            captured = [outer for outer, inner in captures if inner.name == x.name]
            if not captured:  # an argument
                return False
            left += captured
        elif x.op.op_def.is_stateful and x.op.type != "ReadVariableOp":
            return False
        left += x.op.inputs
    return True


def repeats(indices: tf.Tensor) -> tf.Tensor:
    """Whether `indices` [n], n static, are a part of them over and over, as if each sample had these."""
    n = indices.shape[0]
    over = [tf.reduce_all(indices == tf.roll(indices, n // q, axis=0)) for q in sorted(_primes(n))]
    return tf.reduce_any(tf.stack(over)) if over else tf.constant(False)


def _primes(n: int) -> set[int]:
    """That divide `n`."""
    for q in range(2, math.isqrt(n) + 1):
        if n % q == 0:
            return {q} | _primes(n // q)
    return {n} - {1}


def all_finite(values: tf.Tensor) -> tf.Tensor:
    """Whether all are, as whole numbers are; of a gradient its winners tell: NaN and Inf rank first."""
    if values.dtype.is_complex:
        values = tf.abs(values)
    if not values.dtype.is_floating:
        return tf.constant(True)
    return tf.reduce_all(tf.math.is_finite(values))


def sum_of_squares(gradient: Any) -> tf.Tensor:
    """Of the elements of a tensor or `tf.IndexedSlices`, float64 []; added up in float32 at least."""
    x = values_of(gradient)
    x = tf.abs(x) if x.dtype.is_complex else x
    wide = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    return tf.cast(tf.reduce_sum(tf.square(wide)), tf.float64)


def is_set(limit: float | None) -> bool:
    """Whether a limit, as `clipnorm`, clips at all: to Keras 0 and less, as None, mean that none is set."""
    return limit is not None and limit > 0


def clips(optimizer: Any) -> bool:
    """Whether it clips gradients, in any way."""
    return any(map(is_set, (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)))
