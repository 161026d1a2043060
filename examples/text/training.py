"""Training on arrays of ids with Keras's `fit`, and what a run reports."""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from examples.common import report
from examples.common.batches import of_rows, order
from examples.common.garden import IS_LEGACY, check_keras
from examples.common.precision import computing_in
from examples.common.saving import Saving
from examples.common.schedule import RiseAndFall
from examples.common.strategy import start
from examples.text.settings import TextSettings


@dataclasses.dataclass(frozen=True)
class Samples:
    """Arrays with a row per sample; dictionaries of them where a model has several inputs."""

    inputs: Any
    labels: Any

    def __len__(self) -> int:
        return len(self.labels)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: its history, and loss and metrics on the held-out samples."""

    history: dict[str, list[float]]
    held_out: dict[str, float]


def batches(samples: Samples, rows: np.ndarray, batch: int) -> tf.data.Dataset:
    """The samples of these row numbers."""
    tensors = tf.nest.map_structure(tf.constant, (samples.inputs, samples.labels))
    return of_rows(tensors, rows, batch)


def make_optimizer(settings: TextSettings, steps: int, **options) -> tf.keras.optimizers.Optimizer:
    """Adam that leaves rows of tables alone that have no gradient; its rate rises and falls once."""
    peak = settings.learning_rate
    rate = RiseAndFall([(steps, 1)], peak, rising=0.1, last=0.01 * peak)
    if IS_LEGACY:
        from tf_sparse_strategy.legacy_keras import LazyAdam
    else:
        LazyAdam = tss.optimizers.LazyAdam
    return LazyAdam(rate, **options)


def train(
    settings: TextSettings,
    strategy: tss.SparseStrategy,
    make_model: Callable[[TextSettings, int], tf.keras.Model],
    training: Samples,
    held_out: Samples,
    callbacks=(),
) -> Result:
    """Trains and tests one model; every worker calls this alike and gets the same result.

    Args:
      settings: the run.
      strategy: of `common.strategy.start(settings)`.
      make_model: builds and compiles the model for a run of so many steps.
      training, held_out: samples.
      callbacks: more of Keras's.

    Raises:
      RuntimeError: the model is made of another Keras than `tf.keras`.
      ValueError: there are fewer samples than a global batch.
    """
    check_keras(settings.legacy)
    batch, count = settings.global_batch_size, len(training)
    steps = count // batch
    if steps == 0:
        raise ValueError(
            f"global_batch_size={batch} must be at most {count}, the samples to train on."
        )
    tf.keras.utils.set_random_seed(settings.seed)
    with strategy.scope(), computing_in(settings.dtype):
        model = make_model(settings, steps * settings.epochs)
    callbacks = [
        tf.keras.callbacks.ProgbarLogger(),  # first: the monitor's numbers would lengthen its lines
        tss.callbacks.CommunicationMonitor(log_dir=settings.output_dir),
        *callbacks,
    ]
    start = 0
    if settings.resume:
        saving = Saving(os.path.join(settings.output_dir, "checkpoints"), model, strategy)
        start = saving.epoch
        callbacks.append(saving)
    testing = batches(held_out, np.arange(len(held_out)), batch)
    history = {}
    if start < settings.epochs:
        rows = order(settings.seed, range(start, settings.epochs), count, batch)
        history = model.fit(
            batches(training, rows, batch),
            initial_epoch=start,
            epochs=settings.epochs,
            steps_per_epoch=steps,
            validation_data=testing,
            callbacks=callbacks,
            shuffle=False,  # `order` does
            verbose=1,
        ).history
    return Result(dict(history), model.evaluate(testing, verbose=0, return_dict=True))


def program(
    train: Callable[[TextSettings, tss.SparseStrategy], Result],
    name: str,
    measure: Callable[[Result], float],
    reaches: Callable[[float, float], bool],
) -> Callable[[TextSettings], int]:
    """What a recipe's `main` runs: trains, prints what the run gave, and returns the exit code.

    Args:
      train: of the recipe.
      name: of what is measured on the held-out samples.
      measure: its value.
      reaches: whether a value is good enough for a goal: `operator.le` or `operator.ge`.
    """

    def run(settings: TextSettings) -> int:
        strategy = start(settings, delay_rows=settings.delay_rows)
        result = train(settings, strategy)
        value, first = measure(result), strategy.topology.rank == 0
        if first:
            rows = report.speed_and_bytes(strategy, result.history) if result.history else {}
            report.show({**rows, name: f"{value:,.3f}"})
        if settings.check and not reaches(value, settings.goal):
            if first:
                print(f"FAILED: {name} {value:,.3f}; --goal={settings.goal:g}", file=sys.stderr)
            return 1
        return 0

    return run
