"""What every method trains here, and whether it trains as one process would."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from benchmarks import training
from benchmarks.dense_training.constants import BATCH, CHECKED_STEPS, CLASSES, FEATURES, LAYERS


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of training.

    Args:
      model: what is trained; starts from the same weights as all others.
      step: one optimizer step on this worker's rows; returns this worker's share of the loss.
    """

    model: keras.Model
    step: training.Step


def build_model(width: int) -> keras.Model:
    """An MLP of LAYERS hidden layers of `width` units: many bytes, little arithmetic."""

    def build():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
        return keras.Sequential([keras.layers.Input([FEATURES]), *layers, keras.layers.Dense(CLASSES)])

    return training.with_optimizer(build)


def rows(workers: int) -> tuple[np.ndarray, np.ndarray]:
    """The global batch: worker r has rows [r BATCH, (r+1) BATCH)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[workers * BATCH, FEATURES]).astype(np.float32)
    return x, rng.integers(0, CLASSES, workers * BATCH)


def strategy_method(strategy: tf.distribute.Strategy, workers: int, width: int) -> Method:
    """Training under a strategy."""
    with strategy.scope():
        model = build_model(width)
    return Method(model, training.under(strategy, training.plain_step(model, workers * BATCH)))


def plain_method(workers: int, width: int, gradient=training.local_gradient) -> Method:
    """Training without a strategy."""
    model = build_model(width)
    return Method(model, tf.function(training.plain_step(model, workers * BATCH, gradient)))


def difference_to_one_process(methods: dict[str, Method], workers: int, rank: int, width: int) -> dict:
    """Trains CHECKED_STEPS with each method and in one process on the whole batch.

    Returns:
      By method, the largest difference of a weight on this worker.
    """
    x, y = map(tf.constant, rows(workers))
    reference = build_model(width)
    step = tf.function(training.plain_step(reference, workers * BATCH))
    for _ in range(CHECKED_STEPS):
        step(x, y)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    found = {}
    for name, method in methods.items():
        for _ in range(CHECKED_STEPS):
            method.step(x[own], y[own])
        pairs = zip(method.model.get_weights(), reference.get_weights(), strict=True)
        largest = np.max([np.abs(ours - theirs).max() for ours, theirs in pairs])
        found[name] = float(np.nan_to_num(largest, nan=np.inf))  # which a maximum over workers may pass over
    return found


def time_rounds(methods: dict[str, Method], workers: int, rank: int, rounds: int, count: int) -> dict:
    """Seconds per step by method and round; without barriers between them: one of the jobs has no Horovod."""
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    x, y = (tf.constant(part[own]) for part in rows(workers))
    steps = {name: method.step for name, method in methods.items()}
    return training.time_rounds(steps, (x, y), rounds, count, training.tell_of(rank))
