"""The training that every method does: one model, one optimizer, one global batch, in a custom loop."""

import dataclasses
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks.dense_training.constants import BATCH, CHECKED_STEPS, CLASSES, FEATURES, LAYERS

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of training.

    Args:
      model: what is trained; starts from the same weights as all others.
      step: one optimizer step on this worker's rows; returns this worker's share of the loss.
    """

    model: keras.Model
    step: Step


def build_model(width: int) -> keras.Model:
    """An MLP of LAYERS hidden layers of `width` units: many bytes, little arithmetic."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input([FEATURES]), *layers, keras.layers.Dense(CLASSES)])
    model.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.optimizer.build(model.trainable_variables)
    return model


def rows(workers: int) -> tuple[np.ndarray, np.ndarray]:
    """The global batch: worker r has rows [r BATCH, (r+1) BATCH)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[workers * BATCH, FEATURES]).astype(np.float32)
    return x, rng.integers(0, CLASSES, workers * BATCH)


def local_gradient(tape: tf.GradientTape, loss: tf.Tensor, variables: list) -> list:
    """Gradients of this worker's rows."""
    return tape.gradient(loss, variables)


def plain_step(model: keras.Model, workers: int, gradient=local_gradient) -> Step:
    """A step whose loss is this worker's share of the global mean."""

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.reduce_sum(losses) / (workers * BATCH)
        variables = model.trainable_variables
        model.optimizer.apply(gradient(tape, loss, variables), variables)
        return loss

    return step


def strategy_method(strategy: tf.distribute.Strategy, workers: int, width: int) -> Method:
    """Training under a strategy."""
    with strategy.scope():
        model = build_model(width)
    step = plain_step(model, workers)
    return Method(model, tf.function(lambda x, y: strategy.run(step, args=(x, y))))


def plain_method(workers: int, width: int, gradient=local_gradient) -> Method:
    """Training without a strategy."""
    model = build_model(width)
    return Method(model, tf.function(plain_step(model, workers, gradient)))


def difference_to_one_process(methods: dict[str, Method], workers: int, rank: int, width: int) -> dict:
    """Trains CHECKED_STEPS with each method and in one process on the whole batch.

    Returns:
      By method, the largest difference of a weight on this worker.
    """
    x, y = map(tf.constant, rows(workers))
    reference = build_model(width)
    step = tf.function(plain_step(reference, workers))
    for _ in range(CHECKED_STEPS):
        step(x, y)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    found = {}
    for name, method in methods.items():
        for _ in range(CHECKED_STEPS):
            method.step(x[own], y[own])
        pairs = zip(method.model.get_weights(), reference.get_weights(), strict=True)
        found[name] = float(max(np.abs(ours - theirs).max() for ours, theirs in pairs))
    return found


def time_rounds(methods: dict[str, Method], workers: int, rank: int, rounds: int, steps: int) -> dict:
    """Lets the methods take turns, in alternating order.

    Returns:
      By method, seconds per step in each round, by this worker's clock: between two steps, all wait
      for all. A step that is not timed starts each turn.
    """
    x, y = rows(workers)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    x, y = tf.constant(x[own]), tf.constant(y[own])
    times = {name: [] for name in methods}
    for number in range(rounds):
        order = list(methods) if number % 2 else list(methods)[::-1]
        for name in order:
            step = methods[name].step
            step(x, y)
            begin = time.perf_counter()
            for _ in range(steps):
                step(x, y)
            times[name].append((time.perf_counter() - begin) / steps)
        if rank == 0:
            latest = ", ".join(f"{name} {values[-1] * 1e3:.4g}" for name, values in times.items())
            print(f"round {number + 1} of {rounds}, ms per step: {latest}", flush=True)
    return times
