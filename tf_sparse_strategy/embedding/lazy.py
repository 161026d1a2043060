"""Optimizers of Keras 3 that touch only the rows of a table that have a gradient."""

import functools

import keras
import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.gradient_kinds import clips, is_coalesced, values_of


def adam_rows(g, m, v, step, learning_rate, beta_1, beta_2, epsilon):
    """Adam on the rows with a gradient.

        m' = m + (1 - beta_1) (g - m)      v' = v + (1 - beta_2) (g^2 - v)
        dw = -learning_rate sqrt(1 - beta_2^step) / (1 - beta_1^step) m' / (sqrt(v') + epsilon)

    Args:
      g: gradients, [u, D].
      m, v: those rows of the slots.
      step: 1 in the first step, counted for all rows alike.
      learning_rate, beta_1, beta_2, epsilon: scalars.

    Returns:
      (m', v', dw), to be written, written and added.
    """
    m = m + (1 - beta_1) * (g - m)
    v = v + (1 - beta_2) * (tf.square(g) - v)
    alpha = learning_rate * tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
    return m, v, -alpha * m / (tf.sqrt(v) + epsilon)


def adagrad_rows(g, accumulated, learning_rate, epsilon):
    """Adagrad on the rows with a gradient: a' = a + g^2, dw = -learning_rate g / sqrt(a' + epsilon).

    Returns:
      (a', dw), to be written and added.
    """
    accumulated += tf.square(g)
    # Grappler makes x / sqrt(y) to x rsqrt(y), whose bits depend on the place of a row among the rows.
    return accumulated, tf.math.divide_no_nan(-learning_rate * g, tf.sqrt(accumulated + epsilon))


def _totals(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """(for each row, the sum of all rows of its index, the number of its index among the distinct ones)."""
    _, place = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(place))
    return tf.gather(sums, place), place


def once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """`gradient` with the rows of one index added up where it first stands, and zeros at its repetitions.

    Unlike `coalesced` it has as many rows as before, as XLA wants it, which pads what has fewer.
    """
    if is_coalesced(gradient):
        return gradient
    total, place = _totals(gradient)
    count = tf.size(place)
    positions = tf.range(count)
    first = tf.gather(tf.math.unsorted_segment_min(positions, place, count), place) == positions
    first = tf.reshape(first, [-1] + [1] * (total.shape.rank - 1))
    values = tf.where(first, total, tf.zeros_like(total))
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def clipped_rows(optimizer, clip, gradients: list) -> list:
    """Clipped `gradients`: of `tf.IndexedSlices` the rows, each index once, which have the whole's norm.

    Keras would make dense gradients of them.

    Args:
      optimizer: has clipnorm, global_clipnorm and clipvalue.
      clip: its own way, for tensors.
      gradients: of several variables.
    """
    if not clips(optimizer):
        return gradients
    gradients = [once(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    clipped = clip([values_of(g) for g in gradients])
    return [
        tf.IndexedSlices(c, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else c
        for g, c in zip(gradients, clipped, strict=True)
    ]


def _update_rows(gradient, variable, slots, rule) -> None:
    """Writes what `rule` makes of the summed gradient of each index and of its rows.

    Args:
      gradient: `tf.IndexedSlices`; a repeated index is written as often, with the same values.
      variable: TensorFlow's or Keras's.
      slots: TensorFlow's variables.
      rule: from (g, rows of each slot) to (their new rows ..., what is added to the variable's).
    """
    variable, indices = slices.tensorflows(variable), gradient.indices
    total = gradient.values if is_coalesced(gradient) else _totals(gradient)[0]
    *old, values = (tf.gather(slices.local(x), indices) for x in (*slots, variable))
    *new, change = rule(tf.cast(total, variable.dtype), *old)
    for written, rows in zip((*slots, variable), (*new, values + change), strict=True):
        written.scatter_update(tf.IndexedSlices(rows, indices))


def update_adam_rows(optimizer, gradient, variable, slots, learning_rate) -> None:
    """Writes `adam_rows` of the summed gradient of each index; `optimizer` is an Adam of either Keras."""
    dtype = slices.tensorflows(variable).dtype
    numbers = {
        "step": tf.cast(optimizer.iterations + 1, dtype),
        "learning_rate": tf.cast(learning_rate, dtype),
        "beta_1": tf.cast(optimizer.beta_1, dtype),
        "beta_2": tf.cast(optimizer.beta_2, dtype),
        "epsilon": optimizer.epsilon,
    }
    _update_rows(gradient, variable, slots, functools.partial(adam_rows, **numbers))


def refuse_moving_all(optimizer, options) -> None:
    """Raises ValueError where one of the `options` of a lazy optimizer is set."""
    for option in options:
        if getattr(optimizer, option):
            raise ValueError(
                f"LazyAdam({option}={getattr(optimizer, option)!r}): rows without a gradient would have to "
                f"move. Leave {option} out, or use Keras's AdamW or Adam."
            )


class ClipsRows:
    """Mixed into an optimizer of either Keras: clips the rows of sparse gradients, not what they become."""

    clips_rows = True  # for embedding/clipping.py

    def _clip_gradients(self, grads):
        return clipped_rows(self, super()._clip_gradients, grads)


@keras.saving.register_keras_serializable(package="tf_sparse_strategy")
class LazyAdam(ClipsRows, keras.optimizers.Adam):
    """Adam that leaves rows without a gradient as they are, slots included.

    Keras's Adam moves every row of a table in every step, by what is left of its momentum, and reads and
    writes the whole table and its slots for that. This one touches the u rows of a step. That is another
    trajectory: rows rest between their steps, while the bias correction counts all steps. Other variables are
    trained as by Adam. The same row twice in one gradient counts as one row with the sum. For the rows of a
    gradient g in step t:

        m <- m + (1 - beta_1) (g - m),   v <- v + (1 - beta_2) (g^2 - v)
        w <- w - rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    Clipping, too, is of the rows alone, each id once, which have the table's norm. With `use_ema` Keras works
    on the averages of all rows, and all become these where it overwrites weights.

    Args: those of `keras.optimizers.Adam`, but for those that would move every row: `amsgrad`,
      `weight_decay` and `gradient_accumulation_steps`, whose sums are dense.

    Raises:
      ValueError: one of those three is set.

    Example:
      >>> table = keras.Variable(tf.ones([3, 2]))
      >>> LazyAdam(0.1).apply([tf.IndexedSlices(tf.ones([1, 2]), [1], [3, 2])], [table])
      >>> [round(float(x), 3) for x in table[:, 0]]
      [1.0, 0.9, 1.0]

    Source: Kingma & Ba, ICLR 2015, algorithm 1, row by row, as in PyTorch's SparseAdam.
    """

    def __init__(self, learning_rate=0.001, *args, name="lazy_adam", **kwargs):
        super().__init__(learning_rate, *args, name=name, **kwargs)
        refuse_moving_all(self, ("amsgrad", "weight_decay", "gradient_accumulation_steps"))

    def update_step(self, gradient, variable, learning_rate):
        """Updates the rows of `gradient`; called by Keras per variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        slots = self._momentums[index].value, self._velocities[index].value
        update_adam_rows(self, gradient, variable, slots, learning_rate)


@keras.saving.register_keras_serializable(package="tf_sparse_strategy")
class Adagrad(ClipsRows, keras.optimizers.Adagrad):
    """Keras's Adagrad without the work on rows that have no gradient, which it does not move either.

    For the rows of a gradient g, with accumulator a:

        a <- a + g^2,   w <- w - rate g / sqrt(a + epsilon)

    `weight_decay` moves all rows, and `use_ema` averages all: then all are worked on. The same row twice in
    one gradient counts as one row with the sum, also where it is clipped; in Keras's Adagrad as two.

    Args: those of `keras.optimizers.Adagrad`.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> table = keras.Variable([[1.0], [1.0]])
      >>> optimizer = tss.optimizers.Adagrad(learning_rate=1.0)
      >>> optimizer.apply([tf.IndexedSlices(tf.constant([[2.0]]), [1], [2, 1])], [table])
      >>> table.numpy().ravel().round(2)
      array([1.  , 0.01], dtype=float32)

    Source: Duchi, Hazan & Singer, JMLR 2011.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates the rows of `gradient`; called by Keras per variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        accumulator = self._accumulators[self._get_variable_index(variable)].value
        rate = tf.cast(learning_rate, slices.tensorflows(variable).dtype)
        rule = functools.partial(adagrad_rows, learning_rate=rate, epsilon=self.epsilon)
        _update_rows(gradient, variable, [accumulator], rule)
