"""Optimizers of Keras 3 that touch only the rows of a table that have a gradient."""

import keras
import tensorflow as tf

from tf_sparse_strategy.gradients import coalesced


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
      (g^2, dw), both to be added.
    """
    square = tf.square(g)
    return square, -learning_rate * g / tf.sqrt(accumulated + square + epsilon)


@keras.saving.register_keras_serializable(package="tf_sparse_strategy")
class LazyAdam(keras.optimizers.Adam):
    """Adam that leaves rows without a gradient as they are, slots included.

    Keras's Adam moves every row of a table in every step, by what is left of its momentum, and reads and
    writes the whole table and its slots for that. This one touches the u rows of a step. That is another
    trajectory: rows rest between their steps, while the bias correction counts all steps. Other variables are
    trained as by Adam. The same row twice in one gradient counts as one row with the sum.

    Clipping, too, is of the rows alone, each id once, which have the table's norm.

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
        for option in ("amsgrad", "weight_decay", "gradient_accumulation_steps"):
            if getattr(self, option):
                raise ValueError(
                    f"LazyAdam({option}={getattr(self, option)!r}): rows without a gradient would have to "
                    f"move. Leave {option} out, or use keras.optimizers.AdamW or Adam."
                )

    def _clip_gradients(self, grads):
        """Keras's clipping of the rows; of `tf.IndexedSlices` it would make dense gradients."""
        grads = [coalesced(g) for g in grads]
        clipped = super()._clip_gradients([getattr(g, "values", g) for g in grads])
        return [
            tf.IndexedSlices(c, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else c
            for g, c in zip(grads, clipped, strict=True)
        ]

    def update_step(self, gradient, variable, learning_rate):
        """Updates the rows of `gradient`; called by Keras per variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        gradient, dtype = coalesced(gradient), variable.dtype
        index = self._get_variable_index(variable)
        slots = self._momentums[index].value, self._velocities[index].value
        m, v, step = adam_rows(
            tf.cast(gradient.values, dtype),
            *(tf.gather(slot, gradient.indices) for slot in slots),
            step=tf.cast(self.iterations + 1, dtype),
            learning_rate=tf.cast(learning_rate, dtype),
            beta_1=tf.cast(self.beta_1, dtype),
            beta_2=tf.cast(self.beta_2, dtype),
            epsilon=self.epsilon,
        )
        for slot, rows in zip(slots, (m, v), strict=True):
            self.assign(slot, tf.IndexedSlices(rows, gradient.indices))
        self.assign_add(variable, tf.IndexedSlices(step, gradient.indices))


@keras.saving.register_keras_serializable(package="tf_sparse_strategy")
class Adagrad(keras.optimizers.Adagrad):
    """Keras's Adagrad without the work on rows that have no gradient, which it does not move either.

    The same row twice in one gradient counts as one row with the sum; in Keras's Adagrad as two.

    Args: those of `keras.optimizers.Adagrad`.

    Source: Duchi, Hazan & Singer, JMLR 2011.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates the rows of `gradient`; called by Keras per variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        gradient, dtype = coalesced(gradient), variable.dtype
        accumulator = self._accumulators[self._get_variable_index(variable)].value
        square, step = adagrad_rows(
            tf.cast(gradient.values, dtype),
            tf.gather(accumulator, gradient.indices),
            tf.cast(learning_rate, dtype),
            self.epsilon,
        )
        self.assign_add(accumulator, tf.IndexedSlices(square, gradient.indices))
        self.assign_add(variable, tf.IndexedSlices(step, gradient.indices))
