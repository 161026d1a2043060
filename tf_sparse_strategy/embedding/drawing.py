"""Tables drawn piece by piece, with the values of the whole: nobody needs memory for it.

TensorFlow's stateless random numbers come from Philox, a function of a key and a counter: elements
[4i, 4i + 4) of a draw of float32 from count i. So any rows can be drawn by themselves, and each worker draws
all rows, some at a time, and keeps its columns of them; nothing is sent. Cost: a draw of the whole on each
worker.

Not for initializers that use numbers of unknown count (truncated normal), scale by the shape (Glorot's),
or are not Keras's own: those draw the whole, on the first worker.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

GROUP = 4  # elements of float32 from one count
_PHILOX = 1
_WORD = 1 << 64
_SEEDS = (1 << 31) - 2  # to which Keras reduces its seeds


class Recipe(NamedTuple):
    """All that a table's values depend on but its number of columns; JSON can express it.

    Args:
      kind: "uniform" or "normal".
      seed: an integer.
      first: the lower bound, or the mean.
      second: the upper bound, or the standard deviation.
    """

    kind: str
    seed: int
    first: float
    second: float


def recipe_of(initializer: Any, dtype: Any) -> Recipe | None:
    """The recipe of what `initializer` draws; None where only the whole can be drawn.

    Example:
      >>> recipe_of(keras.initializers.RandomUniform(-0.5, 0.5, seed=3), "float32")
      Recipe(kind='uniform', seed=3, first=-0.5, second=0.5)
    """
    if type(initializer) is keras.initializers.RandomUniform:
        kind, numbers = "uniform", (initializer.minval, initializer.maxval)
    elif type(initializer) is keras.initializers.RandomNormal:
        kind, numbers = "normal", (initializer.mean, initializer.stddev)
    else:
        return None
    seed = initializer.seed
    # A generator of seeds changes with each draw; numbers may be one for each column.
    if type(seed) is not int or any(tf.rank(number) != 0 for number in numbers):
        return None
    return Recipe(kind, seed, *map(float, numbers)) if tf.as_dtype(dtype) == tf.float32 else None


def rows(recipe: Recipe, columns: int, first: int, end: int) -> tf.Tensor:
    """Rows [first, end) of any table [L, columns] that is drawn by `recipe`.

    Args:
      recipe: of its initializer.
      columns: D.
      first: a row.
      end: one past the last.

    Returns:
      float32 [end - first, columns].

    Example:
      >>> initializer = keras.initializers.RandomUniform(seed=5)
      >>> drawn = rows(recipe_of(initializer, "float32"), 3, first=7, end=9)
      >>> bool(tf.reduce_all(drawn == initializer((20, 3))[7:9]))
      True
    """
    count, skipped = divmod(first * columns, GROUP)
    with tf.device("CPU:0"):  # a GPU has memory for some columns
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant([recipe.seed % _SEEDS, 0]))
        low, high = counter.numpy().tolist()
        high, low = divmod(high * _WORD + low + count, _WORD)
        philox = {"key": key, "counter": tf.constant([low, high % _WORD], tf.uint64), "alg": _PHILOX}
        shape = [skipped + (end - first) * columns]
        one, other = tf.constant([recipe.first, recipe.second])
        if recipe.kind == "uniform":
            drawn = tf.raw_ops.StatelessRandomUniformV2(shape=shape, **philox) * (other - one) + one
        else:
            drawn = tf.raw_ops.StatelessRandomNormalV2(shape=shape, **philox) * other + one
        return tf.reshape(drawn[skipped:], [end - first, columns])
