"""Data and training: plain Keras but for the lines that mention `tss`, `strategy` or `lars_pto`."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets, model_selection

import lars_pto
import tf_sparse_strategy as tss
from examples.common import phases
from examples.common.batches import of_rows, order
from examples.common.garden import check_keras
from examples.common.precision import computing_in
from examples.common.saving import resumed
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


def synthetic(seed: int):
    """As `load`, of as many images; nothing can be learnt of them."""
    random = np.random.default_rng(seed)

    def noise(count):
        images = random.random([count, 8, 8, 1], "float32")
        return images, random.integers(CLASSES, size=count)

    return noise(1347), noise(450)


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
    if config.optimizer == "sgd":
        return keras.optimizers.SGD(schedule, momentum=0.9)
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

    Raises:
      RuntimeError: the environment asks for tf_keras.
      ValueError: a batch is more than all images.
    """
    check_keras(legacy=False)
    keras.utils.set_random_seed(config.seed)
    training, test = (synthetic if config.synthetic else load)(config.seed)
    batch, count = config.global_batch_size, len(training[0])
    if batch > count:
        raise ValueError(f"global_batch_size={batch} must be at most {count}, the images to train on.")
    steps = count // batch
    model = make_model(config, strategy, config.epochs * steps)
    start, saving = resumed(config, model, strategy)
    callbacks = [
        keras.callbacks.ProgbarLogger(),  # first: the monitor's numbers would lengthen its lines
        tss.callbacks.CommunicationMonitor(log_dir=config.output_dir),
        *callbacks,
        *saving,
    ]

    def arguments(number: int, epochs: range) -> dict:
        size, _ = config.phases[number]
        rows = order(config.seed, epochs, count, batch)
        return {
            "x": batches(rows, training, size, batch),
            "steps_per_epoch": steps,
            "validation_data": batches(np.arange(len(test[0])), test, size, 4 * batch),
            "callbacks": callbacks,
            "verbose": 1,
        }

    history = phases.fit(model, [epochs for _, epochs in config.phases], start, arguments)
    size, _ = config.phases[-1]
    loss, accuracy = model.evaluate(
        batches(np.arange(len(test[0])), test, size, 4 * batch), verbose=0
    )
    return Result(history, loss, accuracy)
