"""Pseudo-random permutations whose elements are computed one by one, without a buffer or a state."""

from collections.abc import Sequence

import tensorflow as tf

from custom_ops.library import library

_ops = library(__file__)


def permuted_index(index: tf.Tensor, size: tf.Tensor | int, key: Sequence[tf.Tensor | int]) -> tf.Tensor:
    """Where elements go under pseudo-random permutations of [0, size), which a key chooses.

    A Feistel network of 16 rounds and more over ceil(log2 size) bits, walked until it is within [0, size). It
    serves to shuffle, not to keep secrets. CPU only; no gradient. Cost: some tens of ns for each element,
    whatever the size. `tf.random.experimental.index_shuffle` permutes 2^16 elements at least, and so walks
    2^16 / size times where they are few.

    Args:
      index: int64 [n], each in [0, size).
      size: 1 to 2^62: int64, one for all or [n].
      key: words that choose the permutation, at least one: int64 each, one for all or [n].

    Returns:
      int64 [n].

    Raises:
      tf.errors.InvalidArgumentError: an index is not in [0, size), a size is above 2^62, or shapes differ (in
        a graph: ValueError).
      TypeError: something is not a whole number.

    Example:
      >>> sorted(permuted_index(tf.range(5, dtype=tf.int64), 5, key=[1, 2]).numpy().tolist())
      [0, 1, 2, 3, 4]

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002), sections 4 and 5.
    """
    return _ops().permuted_index(index=_whole(index), size=_whole(size), key=[_whole(word) for word in key])


def _whole(x):
    # NumPy's fractions would be cut off, were they told to become whole.
    x = tf.convert_to_tensor(x, tf.int64 if isinstance(x, int | list | tuple) else None)
    if not x.dtype.is_integer:
        raise TypeError(f"permuted_index: {x.dtype.name} where whole numbers are wanted.")
    return tf.cast(x, tf.int64)
