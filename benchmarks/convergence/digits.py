"""A small residual network on scikit-learn's 1,797 handwritten digits: test accuracy."""

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets

import lars_pto
from examples.digits.model import build_model

EPOCHS, BATCH, TEST = 28, 128, 360  # BATCH: of all workers
PEAK, SGDS_PEAK, WARM_UP = 8.0, 0.2, 8  # learning rates, and epochs until they are reached


def load() -> tuple[tuple, tuple]:
    """((images, labels) to train on, those to test on); the same split for all seeds."""
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = (found.images / 16.0).astype("float32")[order, ..., None], found.target[order]
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """Linear to `peak` in the first WARM_UP epochs, and linear down to a hundredth of it."""

    def __init__(self, peak: float, steps: int, epochs: int):
        self._peak, self._up, self._all = peak, min(WARM_UP, epochs / 2) * steps, epochs * steps

    def __call__(self, step):
        """The rate of a step."""
        step = tf.cast(step, tf.float32)
        down = 1.0 - 0.99 * (step - self._up) / (self._all - self._up)
        return self._peak * tf.minimum((step + 1) / self._up, down)

    def get_config(self):
        """Not to be saved."""
        raise NotImplementedError


def train(strategy, seed: int, epochs: int, sgd: bool) -> float:
    """Accuracy on the test images after training, by LARS or by SGD; collective."""
    keras.utils.set_random_seed(seed)
    (x, y), test = load()
    data = tf.data.Dataset.from_tensor_slices((x, np.eye(10, dtype="float32")[y]))
    data = data.shuffle(len(x), seed=seed).batch(BATCH, drop_remainder=True)
    with strategy.scope():
        model = build_model()
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        rates = Rates(SGDS_PEAK if sgd else PEAK, len(x) // BATCH, epochs)
        if sgd:
            optimizer = keras.optimizers.SGD(rates, momentum=0.9)
        else:
            optimizer = lars_pto.LARS(rates, weight_decay=1e-4)
        model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(data, epochs=epochs, verbose=0)
    found = np.argmax(model.predict(test[0], batch_size=TEST, verbose=0), axis=1)
    return float(np.mean(found == test[1]))


def steps() -> int:
    """Of one epoch."""
    return len(load()[0][0]) // BATCH
