"""Learning rates that rise and fall."""

from collections.abc import Sequence

import tensorflow as tf


def done(step, phases: Sequence[tuple[int, float]]):
    """The part of a run, 0 to 1, that is done after `step`, counted from 0.

    Args:
      step: a scalar, or a tensor of them.
      phases: (steps, epochs) pairs, one after the other: epochs of one run may differ in steps.

    Example:
      >>> [float(done(step, [(4, 2), (4, 1)])) for step in (1, 3, 7)]
      [0.3333333432674408, 0.6666666865348816, 1.0]
    """
    epochs, begin = 0.0, 0
    for steps, length in phases:
        within = tf.clip_by_value(tf.cast(step, tf.float32) + 1 - begin, 0, steps)
        epochs, begin = epochs + within / steps * length, begin + steps
    return epochs / sum(length for _, length in phases)


def rate(part, peak: float, rising: float, last: float):
    """Linear from 0 to `peak`, then linear down.

    Args:
      part: of the run that is done, 0 to 1.
      peak: the highest rate.
      rising: part of the run until then.
      last: the rate at the end.

    Example:
      >>> [round(float(rate(part, 8.0, 0.25, 2.0)), 2) for part in (0.0, 0.125, 0.25, 0.5, 1.0)]
      [0.0, 4.0, 8.0, 6.0, 2.0]
    """
    down = peak + (last - peak) * (part - rising) / (1 - rising)
    return tf.minimum(peak * part / rising, down)


@tf.keras.utils.register_keras_serializable(package="examples")
class RiseAndFall(tf.keras.optimizers.schedules.LearningRateSchedule):
    """`rate` of what is `done`, as Keras wants it."""

    def __init__(
        self, phases: Sequence[tuple[int, float]], peak: float, rising: float, last: float
    ):
        self._phases = [tuple(phase) for phase in phases]
        self._shape = {"peak": peak, "rising": rising, "last": last}

    def __call__(self, step):
        """The rate of a step."""
        return rate(done(step, self._phases), **self._shape)

    def get_config(self):
        """The arguments of the constructor."""
        return {"phases": self._phases, **self._shape}


def inverse_root(step, peak: float, warm_up: int, steps: int):
    """Linear from 0 to `peak` in `warm_up` steps, then peak sqrt(warm_up / steps done).

    Source: Vaswani et al., NeurIPS 2017, section 5.3.

    Example:
      >>> [round(float(inverse_root(step, 8.0, 4, 16)), 2) for step in (0, 3, 15)]
      [2.0, 8.0, 4.0]
    """
    del steps
    count = tf.cast(step, tf.float32) + 1
    return peak * tf.minimum(count / warm_up, tf.sqrt(warm_up / count))


def halving(step, peak: float, warm_up: int, steps: int):
    """From peak / 100 by equal factors to `peak` in `warm_up` steps; halved four times in the last third.

    Source: NVIDIA's GNMT v2, DeepLearningExamples.

    Example:
      >>> [round(float(halving(step, 8.0, 2, 24)), 2) for step in (0, 1, 14, 15, 17, 18, 23)]
      [0.8, 8.0, 8.0, 4.0, 2.0, 2.0, 0.5]
    """
    count = tf.cast(step, tf.float32) + 1
    risen = tf.pow(0.01, tf.maximum(1 - count / warm_up, 0.0))
    halved = tf.clip_by_value(tf.floor(12 * count / steps - 8) + 1, 0, 4)
    return peak * risen * tf.pow(0.5, halved)


BY_STEPS = {"inverse_root": inverse_root, "halving": halving}


@tf.keras.utils.register_keras_serializable(package="examples")
class BySteps(tf.keras.optimizers.schedules.LearningRateSchedule):
    """One of `BY_STEPS`, as Keras wants it."""

    def __init__(self, name: str, peak: float, warm_up: int, steps: int):
        self._name = name
        self._shape = {"peak": peak, "warm_up": warm_up, "steps": steps}

    def __call__(self, step):
        """The rate of a step."""
        return BY_STEPS[self._name](step, **self._shape)

    def get_config(self):
        """The arguments of the constructor."""
        return {"name": self._name, **self._shape}
