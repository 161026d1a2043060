"""How the K entries of a message are found: exactly, or by an estimated threshold.

An estimate decides only which entries go first; what is not sent stays in the residual all the same. Each
selector returns exactly K distinct ascending indices, so that messages keep their size, and takes entries
that are not finite first, so that they are seen.
"""

import statistics

import tensorflow as tf

from custom_ops import mstopk

SELECTORS = ("exact", "gaussian", "sampled")
_GAUSSIAN_STEPS, _WIDEN = 20, 1.02
_SAMPLE, _SAMPLED_STEPS, _LOWER = 100, 10, 0.8


def select(x: tf.Tensor, k: int, selector: str) -> tuple[tf.Tensor, tf.Tensor]:
    """(values [..., K], int32 indices [..., K]) of `x` [..., N].

    - "exact": the K largest magnitudes (custom_ops.mstopk).
    - "gaussian": those above mean + |z| deviation of the normal distribution's quantile z = Q(K / 2N),
      which in at most 20 steps of 2 % is moved until between 3K/4 and 5K/4 are above; the first K of them,
      and where there are fewer, the first of the others. "GaussianK".
    - "sampled": a threshold from every 100th entry, in at most 10 steps lowered by a fifth until 4K/5 are
      above; of those the K largest, and where there are fewer, the first of the others. Deep Gradient
      Compression's.

    When not to use the latter two: `mstopk` selects exactly in about one read of `x`, no slower than they
    estimate; they are for comparison with what others have published.

    Args:
      x: float32, N static.
      k: K, 1 to N.
      selector: one of these.

    Example:
      >>> values, indices = select(tf.constant([0.5, -3.0, 1.0, 2.0]), 2, "exact")
      >>> values.numpy().tolist(), indices.numpy().tolist()
      ([-3.0, 2.0], [1, 3])

    Source: Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", 2019; Lin et al.,
    "Deep Gradient Compression", ICLR 2018, section 3.
    """
    if selector == "exact":
        return tuple(mstopk(x, k))
    size = tf.abs(x)
    if selector == "gaussian":
        above = size > _gaussian_threshold(x, size, k)
        rank = tf.cast(above, tf.float32)
    else:
        rank = tf.where(size >= _sampled_threshold(size, k), size, 0.0)
    rank = tf.where(tf.math.is_finite(x), rank, x.dtype.max)  # Inf would be found by TensorFlow's own checks
    indices = mstopk(rank, k).indices
    return tf.gather(x, indices, batch_dims=x.shape.rank - 1), indices


def _count(size, threshold):
    return tf.reduce_sum(tf.cast(size > threshold, tf.int32), axis=-1, keepdims=True)


def _gaussian_threshold(x, size, k: int):
    """[..., 1]"""
    z = -statistics.NormalDist().inv_cdf(max(k / (2 * x.shape[-1]), 1e-12))
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    threshold = tf.abs(mean) + z * tf.math.reduce_std(x, axis=-1, keepdims=True)

    def move(step, threshold):
        count = _count(size, threshold)
        lower, higher = count < 3 * k // 4, count > 5 * k // 4
        factor = tf.where(lower, 1 / _WIDEN, tf.where(higher, _WIDEN, 1.0))
        return step + 1, threshold * tf.cast(factor, threshold.dtype)

    def outside(step, threshold):
        count = _count(size, threshold)
        far = tf.reduce_any(tf.logical_or(count < 3 * k // 4, count > 5 * k // 4))
        return tf.logical_and(step < _GAUSSIAN_STEPS, far)

    return tf.while_loop(outside, move, [0, threshold])[1]


def _sampled_threshold(size, k: int):
    """[..., 1]"""
    sample = size[..., ::_SAMPLE]
    wanted = max(1, round(k / size.shape[-1] * sample.shape[-1]))
    threshold = tf.reduce_min(mstopk(sample, wanted).values, axis=-1, keepdims=True)

    def outside(step, threshold):
        return tf.logical_and(step < _SAMPLED_STEPS, tf.reduce_any(_count(size, threshold) < 4 * k // 5))

    def lower(step, threshold):
        few = _count(size, threshold) < 4 * k // 5
        return step + 1, tf.where(few, _LOWER * threshold, threshold)

    return tf.while_loop(outside, lower, [0, threshold])[1]
