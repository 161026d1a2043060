"""Compiled operations, which lie beside their Python wrappers, and where they can run."""

import functools
import pathlib
import types
from collections.abc import Callable

import tensorflow as tf


def on_gpu() -> bool:
    """Whether tensors may be where operations that are for CPUs alone have no kernels."""
    return bool(tf.config.get_visible_devices("GPU"))


def fits_cpu_alone() -> bool:
    """Whether a step of an optimizer may use operations that are for CPUs alone, and unknown to XLA.

    Where a GPU is there but hidden, Keras 3 compiles by itself, unless a strategy is at hand. A TPU compiles
    all.
    """
    if on_gpu() or tf.config.list_logical_devices("TPU"):
        return False
    return tf.distribute.has_strategy() or not tf.config.list_physical_devices("GPU")


def library(wrapper: str) -> Callable[[], types.ModuleType]:
    """The function that loads the operations of one wrapper: at its first call, not at import.

    Args:
      wrapper: the wrapper's `__file__`; x.py has its operations in x_ops.so.

    Raises:
      ImportError: (of that function) they have not been built.
    """
    path = pathlib.Path(wrapper)
    file = path.with_name(f"{path.stem}_ops.so")

    @functools.cache
    def load() -> types.ModuleType:
        if not file.exists():
            raise ImportError(
                f"custom_ops.{path.stem}: {file.name} is not in {file.parent}: run `make setup` in the "
                "checkout to build it, or install the wheel, which contains it."
            )
        return tf.load_op_library(str(file))

    return load
