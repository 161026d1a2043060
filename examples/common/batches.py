"""Batches of arrays in memory, in an order that follows from the epoch."""

from typing import Any

import numpy as np
import tensorflow as tf


def order(seed: int, epochs: range, count: int, batch: int) -> np.ndarray:
    """Row numbers for these epochs, the same whichever epoch a run begins with; full batches only."""
    return np.concatenate(
        [
            np.random.default_rng([seed, epoch]).permutation(count)[: count // batch * batch]
            for epoch in epochs
        ]
    )


def of_rows(tensors: Any, rows: np.ndarray, batch: int) -> tf.data.Dataset:
    """These rows of the tensors, which may be nested, in batches."""
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(batch)
    return dataset.map(lambda i: tf.nest.map_structure(lambda t: tf.gather(t, i), tensors))
