"""The TensorFlow Model Garden, whose models are tf_keras's."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

IS_LEGACY = tf.keras.Model.__module__.startswith("tf_keras")  # for TF_USE_LEGACY_KERAS=1


def check_keras(legacy: bool) -> None:
    """Refuses a model that is not made of what `tf.keras` is.

    Args:
      legacy: the model is tf_keras's, not Keras 3's.

    Raises:
      RuntimeError: `tf.keras` is the other one.
    """
    if legacy and not IS_LEGACY:
        raise RuntimeError(
            "--model=garden needs the environment variable TF_USE_LEGACY_KERAS=1 on all workers: the "
            "Model Garden's models are tf_keras's, and so must be optimizer and metrics."
        )
    if IS_LEGACY and not legacy:
        raise RuntimeError(
            "The environment has TF_USE_LEGACY_KERAS=1, but this model is Keras 3's. Unset the variable on "
            "all workers, or choose --model=garden where the recipe has it."
        )


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A block that imports parts of `official`.

    Raises:
      ImportError: tf-models-official is not installed.
      RuntimeError: `tf.keras` is Keras 3.
    """
    check_keras(legacy=True)
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"--model=garden needs the TensorFlow Model Garden ({error}); in a clone `make setup` installs "
            "it, elsewhere: pip install tf-models-official==2.20.0"
        ) from error
