"""What learns on handwritten digits: its layers, the order of its images, its accuracy.

Nothing is emulated here: real images, real arithmetic.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.digits.train import load
from tf_sparse_strategy import pipelines

BATCH = 128  # of all workers


def build(kind: type[keras.Model]) -> keras.Model:
    """The model, compiled."""
    x = images = keras.Input([8, 8, 1])
    x = keras.layers.Flatten()(x)
    for width in (1024, 512):
        x = keras.layers.Dense(width, activation="relu")(x)
    model = kind(images, keras.layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
    return model


def images(seed: int, epochs: int) -> tuple[tf.data.Dataset, tuple[np.ndarray, np.ndarray]]:
    """Batches of all workers for all `epochs`, one after the other, and what is not trained on.

    The order is part of the data, the same for all ways: one drawn by the pipeline would depend on who opens
    its iterators, and when.

    Without tf.data's autotuning: the end of a tuned iterator may take seconds (TensorFlow 2.20), for
    which all workers wait. Our strategy turns it off; Horovod's users, and TensorFlow's, must.

    Args:
      seed: of the order; the images are the same for all.
      epochs: how many, each in an order of its own and without what does not fill a batch.
    """
    (x, y), test = load(seed=0)
    random, whole = np.random.default_rng(seed), len(x) // BATCH * BATCH
    order = np.concatenate([random.permutation(len(x))[:whole] for _ in range(epochs)])
    data = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(BATCH, drop_remainder=True)
    return pipelines.without_tuning(data), test


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of the images that are told right."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))
