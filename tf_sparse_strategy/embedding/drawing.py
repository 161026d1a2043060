"""Tables drawn piece by piece, with the values of the whole: nobody holds more than its columns and a piece.

TensorFlow's stateless random numbers come from Philox, a function of a key and a counter: elements
[4i, 4i + 4) of a draw of float32 from count i. So any rows can be drawn by themselves, and each worker draws
all rows, some at a time, and keeps its columns of them; nothing is sent. Cost: D/P columns' memory, a draw of
the whole on each worker.

Not for initializers that use numbers of unknown count (truncated normal), scale by the shape (Glorot's),
or are not Keras's own: those draw the whole, on the first worker.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from typing import Any

import keras
import tensorflow as tf

GROUP = 4  # elements of float32 from one count
_PHILOX = 1
_WORD = 1 << 64
_SEEDS = (1 << 31) - 2  # to which Keras reduces its seeds


def seed_of(initializer: Any, dtype: Any) -> int | None:
    """The seed with which `rows` draws what `initializer` does; None where only the whole can be drawn."""
    if type(initializer) not in _DRAWN or tf.as_dtype(dtype) != tf.float32:
        return None
    seed = initializer.seed  # a generator of seeds changes with each draw
    return seed if isinstance(seed, int) and 0 <= seed < 1 << 32 else None


def rows(initializer: Any, seed: int, columns: int, first: int, end: int) -> tf.Tensor:
    """Rows [first, end) of any table [L, columns] that `initializer` draws.

    Args:
      initializer: one that `seed_of` knows.
      seed: its own, or another worker's.
      columns: D.
      first: a row.
      end: one past the last.

    Returns:
      float32 [end - first, columns].

    Example:
      >>> initializer = keras.initializers.RandomUniform(seed=5)
      >>> bool(tf.reduce_all(rows(initializer, 5, 3, first=7, end=9) == initializer((20, 3))[7:9]))
      True
    """
    count, skipped = divmod(first * columns, GROUP)
    with tf.device("CPU:0"):  # a GPU has memory for some columns
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant([seed % _SEEDS, 0]))
        low, high = counter.numpy().tolist()
        high, low = divmod(high * _WORD + low + count, _WORD)
        counter = tf.constant([low, high % _WORD], tf.uint64)
        shape = [skipped + (end - first) * columns]
        drawn = _DRAWN[type(initializer)](initializer, shape=shape, key=key, counter=counter, alg=_PHILOX)
        return tf.reshape(drawn[skipped:], [end - first, columns])


def _uniform(initializer, **philox):
    low, high = (tf.cast(bound, tf.float32) for bound in (initializer.minval, initializer.maxval))
    return tf.raw_ops.StatelessRandomUniformV2(**philox) * (high - low) + low


def _normal(initializer, **philox):
    return tf.raw_ops.StatelessRandomNormalV2(**philox) * initializer.stddev + initializer.mean


_DRAWN = {keras.initializers.RandomUniform: _uniform, keras.initializers.RandomNormal: _normal}
