"""Training on arrays of ids with Keras's `fit`, and what a run reports."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from examples.common import phases, report, schedule
from examples.common.batches import of_rows, order
from examples.common.garden import IS_LEGACY, check_keras
from examples.common.keras_classes import LAMB, LazyAdam
from examples.common.precision import computing_in
from examples.common.saving import resumed
from examples.common.strategy import start
from examples.text.settings import TextSettings
from tf_sparse_strategy import agreement


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


def make_rate(
    settings: TextSettings, plan: Sequence[tuple[int, int]]
) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """The schedule that the settings ask for, of a run of these (steps, epochs).

    Raises:
      ValueError: the rate cannot fall within the run.
    """
    peak, steps = settings.learning_rate, sum(count for count, _ in plan)
    warm_up = settings.warm_up_steps
    if settings.schedule == "linear":
        if warm_up is not None and warm_up >= steps:
            raise ValueError(
                f"warm_up_steps={warm_up} must be less than {steps}, the run's: the rate falls after them."
            )
        rising = 0.1 if warm_up is None else float(schedule.done(warm_up - 1, plan))
        return schedule.RiseAndFall(plan, peak, rising, last=0.01 * peak)
    return schedule.BySteps(settings.schedule, peak, warm_up or max(1, steps // 10), steps)


def make_optimizer(
    settings: TextSettings, plan: Sequence[tuple[int, int]], **moments
) -> tf.keras.optimizers.Optimizer:
    """LAMB, or Adam that leaves rows of tables alone that have no gradient.

    Args:
      settings: the run.
      plan: its (steps, epochs).
      moments: beta_1, beta_2 and epsilon, where they are others than the optimizer's own.
    """
    rate = make_rate(settings, plan)
    if settings.optimizer == "lamb":
        return LAMB(
            rate, parallel=settings.pto or "auto", global_clipnorm=settings.clip, **moments
        )
    return LazyAdam(rate, global_clipnorm=settings.clip, **moments)


def _digest(*parts: Samples) -> str:
    digest = hashlib.sha256()
    for array in tf.nest.flatten([(part.inputs, part.labels) for part in parts]):
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]


def train(
    settings: TextSettings,
    strategy: tss.SparseStrategy,
    make_model: Callable[[TextSettings, Sequence[tuple[int, int]]], tf.keras.Model],
    samples: Callable[[int], tuple[Samples, Samples]],
    length: int,
    callbacks=(),
) -> Result:
    """Trains and tests one model; every worker calls this alike and gets the same result.

    Args:
      settings: the run.
      strategy: of `common.strategy.start(settings)`.
      make_model: builds and compiles the model for a run of these (steps, epochs).
      samples: (those to train on, those to test on), of so many words each.
      length: of samples where the settings name none. The last phase's is that of the test.
      callbacks: more of Keras's.

    Raises:
      RuntimeError: the model is made of another Keras than `tf.keras`.
      ValueError: there are fewer samples than a global batch; samples are longer than `length`.
    """
    check_keras(settings.legacy)
    plan, batch = settings.phases or ((length, settings.epochs),), settings.global_batch_size
    if max(words for words, _ in plan) > length:
        raise ValueError(f"phases={plan} must be of {length} words at most, as the model's size says.")
    data = {words: samples(words) for words, _ in plan}
    for words, (learnt, held_out) in data.items():
        if len(learnt) < batch or not len(held_out):
            raise ValueError(
                f"global_batch_size={batch} must be at most {len(learnt)}, the samples of {words} words to "
                f"train on, and there must be some to test on: {len(held_out)}."
            )
    digests = {f"samples of {words} words": _digest(*pair) for words, pair in data.items()}
    agreement.require_same(
        digests,
        strategy.extended.collectives,
        "Give --text the same file on all machines, or use the same Python with the same packages.",
    )
    tf.keras.utils.set_random_seed(settings.seed)
    with strategy.scope(), computing_in(settings.dtype):
        model = make_model(
            settings, [(len(data[words][0]) // batch * epochs, epochs) for words, epochs in plan]
        )
    start, saving = resumed(settings, model, strategy, samples=" ".join(next(iter(digests.items()))))
    callbacks = [
        # First: the monitor's numbers would lengthen its lines. tf_keras's would count no steps otherwise.
        tf.keras.callbacks.ProgbarLogger(*["steps"] * IS_LEGACY),
        tss.callbacks.CommunicationMonitor(log_dir=settings.output_dir),
        *callbacks,
        *saving,
    ]

    def testing(words: int) -> tf.data.Dataset:
        _, held_out = data[words]
        return batches(held_out, np.arange(len(held_out)), batch)

    def arguments(number: int, epochs: range) -> dict[str, Any]:
        words, _ = plan[number]
        learnt, _ = data[words]
        return {
            "x": batches(learnt, order(settings.seed, epochs, len(learnt), batch), batch),
            "steps_per_epoch": len(learnt) // batch,
            "validation_data": testing(words),
            "callbacks": callbacks,
            "verbose": 1,
        }

    history = phases.fit(model, [epochs for _, epochs in plan], start, arguments)
    last, _ = plan[-1]
    return Result(history, model.evaluate(testing(last), verbose=0, return_dict=True))


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
        value = measure(result)
        if strategy.topology.rank == 0:
            rows = report.speed_and_bytes(strategy, result.history) if result.history else {}
            report.show({**rows, name: f"{value:,.3f}"})
        return report.verdict(strategy, name, value, settings.goal, reaches, ",.3f") if settings.check else 0

    return run
