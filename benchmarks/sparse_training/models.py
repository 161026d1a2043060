"""What is trained: two models whose gradients take long to send, and one that takes long to compute."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

CLASSES, WORDS, LENGTH = 10, 2000, 16


@dataclasses.dataclass(frozen=True)
class Task:
    """A model and its data.

    Args:
      build: makes the model.
      batch: rows of each worker.
      shape: of one row.
      words: rows are ids below this; 0 for rows of floats.
    """

    build: Callable[[], keras.Model]
    batch: int
    shape: tuple[int, ...]
    words: int = 0

    def rows(self, workers: int) -> tuple[np.ndarray, np.ndarray]:
        """The global batch: worker r has rows [r batch, (r+1) batch)."""
        rng = np.random.default_rng(0)
        shape = [workers * self.batch, *self.shape]
        if self.words:
            x = rng.integers(0, self.words, shape).astype(np.int32)
            return x, x
        return rng.normal(size=shape).astype(np.float32), rng.integers(0, CLASSES, shape[0])


def vgg_like() -> keras.Model:
    """Two convolutions and wide dense layers, which hold nearly all of the parameters."""
    layers = keras.layers
    convolutions = [layers.Conv2D(c, 3, strides=2, padding="same", activation="relu") for c in (16, 32)]
    wide = [layers.Dense(2048, activation="relu") for _ in range(2)]
    return keras.Sequential(
        [layers.Input([16, 16, 3]), *convolutions, layers.Flatten(), *wide, layers.Dense(CLASSES)]
    )


def transformer() -> keras.Model:
    """Says each word again; the embedding is a dense product, so that its gradient is dense too."""
    layers, width, blocks = keras.layers, 256, 3
    ids = layers.Input([LENGTH], dtype="int32")
    x = layers.Dense(width)(keras.ops.one_hot(ids, WORDS))
    for _ in range(blocks):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, width // 4)(x, x))
        x = layers.LayerNormalization()(
            x + layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x))
        )
    return keras.Model(ids, layers.Dense(WORDS)(x))


def small_cnn() -> keras.Model:
    """Few parameters, much arithmetic."""
    layers = keras.layers
    convolutions = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
    return keras.Sequential(
        [
            layers.Input([32, 32, 3]),
            *convolutions,
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )


TASKS = {
    "VGG-like": Task(vgg_like, 4, (16, 16, 3)),
    "Transformer": Task(transformer, 1, (LENGTH,), WORDS),
    "small CNN": Task(small_cnn, 64, (32, 32, 3)),
}
