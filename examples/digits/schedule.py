"""The learning rate of each step."""

import keras
import tensorflow as tf

WARM_UP, LAST = 2 / 7, 0.01  # part of the steps; part of the peak


def rate(step, steps: int, peak: float):
    """Linear from near 0 to `peak` in the first 2/7 of the steps, then linear down to a hundredth of it.

    Example:
      >>> [round(float(rate(step, 28, 8.0)), 2) for step in (0, 7, 8, 27, 28)]
      [1.0, 8.0, 8.0, 0.48, 0.08]
    """
    step, up = tf.cast(step, tf.float32), WARM_UP * steps
    down = 1.0 - (1.0 - LAST) * (step - up) / (steps - up)
    return peak * tf.minimum((step + 1) / up, down)


@keras.saving.register_keras_serializable(package="digits")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """`rate` as Keras wants it."""

    def __init__(self, steps: int, peak: float):
        self._steps, self._peak = steps, peak

    def __call__(self, step):
        """The rate of a step."""
        return rate(step, self._steps, self._peak)

    def get_config(self):
        """The arguments of the constructor."""
        return {"steps": self._steps, "peak": self._peak}
