"""Mixed precision for one model."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def computing_in(dtype: str) -> Iterator[None]:
    """Layers that are made in this block compute in that dtype; with float16 optimizers scale the loss."""
    mixed = tf.keras.mixed_precision
    before = mixed.global_policy()
    mixed.set_global_policy(dtype)
    try:
        yield
    finally:
        mixed.set_global_policy(before)
