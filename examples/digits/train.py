"""Data and training: plain Keras but for the lines that mention `tss`, `strategy` or `lars_pto`."""

import collections
import dataclasses
import os

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets, model_selection

import lars_pto
import tf_sparse_strategy as tss
from examples.common.batches import of_rows, order
from examples.common.precision import computing_in
from examples.common.saving import Saving
from examples.common.schedule import RiseAndFall
from examples.digits.config import Config
from examples.digits.model import CLASSES, build_model


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: its history, and loss and accuracy on the test images."""

    history: dict[str, list[float]]
    test_loss: float
    test_accuracy: float


def load(seed: int):
    """Returns ((images, labels) to train on, (images, labels) to test on).

    1,797 images [8, 8, 1] in 0..1, a quarter of each class for the test.
    """
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        images, digits.target, test_size=0.25, stratify=digits.target, random_state=seed
    )
    return (train_x, train_y), (test_x, test_y)


def batches(rows: np.ndarray, data, size: int, batch: int) -> tf.data.Dataset:
    """The images of these row numbers, `size` pixels high and wide, with one-hot labels."""
    images, labels = data
    tensors = tf.image.resize(images, [size, size]), tf.one_hot(labels, CLASSES)
    return of_rows(tensors, rows, batch)


def make_optimizer(config: Config, steps: int) -> keras.optimizers.Optimizer:
    """Adam, or LARS, with a rate that rises and falls once in so many steps."""
    peak = config.learning_rate
    schedule = RiseAndFall([(steps, config.epochs)], peak, rising=2 / 7, last=peak / 100)
    if config.optimizer == "adam":
        return keras.optimizers.Adam(schedule)
    return lars_pto.LARS(schedule, weight_decay=1e-4, parallel=config.pto or "auto")


def make_model(config: Config, strategy: tss.SparseStrategy, steps: int) -> keras.Model:
    """The network, compiled for a run of so many steps."""
    with strategy.scope(), computing_in(config.dtype):
        model = build_model()
        model.compile(
            optimizer=make_optimizer(config, steps),
            loss=keras.losses.CategoricalCrossentropy(
                from_logits=True, label_smoothing=config.label_smoothing
            ),
            metrics=["accuracy"],
        )
    return model


def train(config: Config, strategy: tss.SparseStrategy, callbacks=()) -> Result:
    """Trains and tests one model; every worker calls this alike and gets the same result.

    Args:
      config: the run.
      strategy: as `examples.common.strategy.start` makes it.
      callbacks: more of Keras's.
    """
    keras.utils.set_random_seed(config.seed)
    training, test = load(config.seed)
    batch, count = config.global_batch_size, len(training[0])
    steps = count // batch
    model = make_model(config, strategy, config.epochs * steps)
    callbacks = [
        keras.callbacks.ProgbarLogger(),  # first: the monitor's numbers would lengthen its lines
        tss.callbacks.CommunicationMonitor(log_dir=config.output_dir),
        *callbacks,
    ]
    start = 0
    if config.resume:
        saving = Saving(os.path.join(config.output_dir, "checkpoints"), model, strategy)
        start = saving.epoch
        callbacks.append(saving)

    history, end = collections.defaultdict(list), 0
    for size, epochs in config.phases:
        first, end = max(start, end), end + epochs
        if first >= end:
            continue  # done before the run was resumed
        rows = order(config.seed, range(first, end), count, batch)
        found = model.fit(
            batches(rows, training, size, batch),
            initial_epoch=first,
            epochs=end,
            steps_per_epoch=steps,
            validation_data=batches(np.arange(len(test[0])), test, size, 4 * batch),
            callbacks=callbacks,
            shuffle=False,  # `order` does
            verbose=1,
        )
        for name, values in found.history.items():
            history[name] += values
        history["epoch"] += [epoch + 1 for epoch in found.epoch]
    size, _ = config.phases[-1]
    loss, accuracy = model.evaluate(
        batches(np.arange(len(test[0])), test, size, 4 * batch), verbose=0
    )
    return Result(dict(history), loss, accuracy)
