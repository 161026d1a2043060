"""Rows of several ids made one: sum, mean and sqrtn, with weights."""

import tensorflow as tf

COMBINERS = ("sum", "mean", "sqrtn")


def combine(
    rows: tf.Tensor, segments: tf.Tensor, count: tf.Tensor, combiner: str, weights: tf.Tensor | None
) -> tf.Tensor:
    """Combines rows of the same segment.

        sum: sum_i w_i x_i    mean: that / sum_i w_i    sqrtn: that / sqrt(sum_i w_i^2)

    Args:
      rows: x, [n, D]; added up in float32 at least.
      segments: int [n], the result's row that each belongs to, in any order.
      count: rows of the result.
      combiner: "sum", "mean" or "sqrtn".
      weights: w, [n]; 1 by default.

    Returns:
      [count, D] in the dtype of `rows`; zeros for a segment without rows.

    Source: `tf.nn.embedding_lookup_sparse`.
    """
    dtype = rows.dtype
    exact = tf.cast(rows, tf.float64 if dtype == tf.float64 else tf.float32)
    if weights is not None:
        weights = tf.cast(weights, exact.dtype)
        exact *= weights[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(exact, segments, count)
    if combiner != "sum":
        weights = tf.ones_like(segments, exact.dtype) if weights is None else weights
        is_root = combiner == "sqrtn"
        divisor = tf.math.unsorted_segment_sum(tf.square(weights) if is_root else weights, segments, count)
        divisor = tf.sqrt(divisor) if is_root else divisor
        total = tf.math.divide_no_nan(total, divisor[:, tf.newaxis])
    return tf.cast(total, dtype)
