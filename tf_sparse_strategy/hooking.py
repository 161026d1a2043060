"""Replacing a function of Keras or TensorFlow by one of ours that can call the original.

A replaced function sees every strategy, so each first asks whether the one at hand is ours.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def extended_of(strategy: Any) -> Any:
    """`strategy.extended` if it is a `SparseStrategy`'s, else None; None for None."""
    extended = getattr(strategy, "extended", None)
    return extended if hasattr(extended, "reduce_gradients") else None


def ours(strategy: Any) -> Any:
    """`strategy.extended` if it is a `SparseStrategy` with more than one worker, else None."""
    extended = extended_of(strategy)
    if extended is None or extended.collectives.topology.num_workers == 1:
        return None
    return extended


def extended_of_model(model: Any) -> Any:
    """`extended_of` the strategy that a model of either Keras was made under; None for None."""
    return extended_of(getattr(model, "distribute_strategy", None))


def in_replica_of_ours() -> Any:
    """The current strategy's extended object if it is ours and a replica function runs, else None."""
    extended = extended_of(tf.distribute.get_strategy())
    return extended if tf.distribute.get_replica_context() else None


def model_of(callbacks: Any) -> Any:
    """The model of either Keras's `CallbackList`; None if it has none."""
    return getattr(callbacks, "model", None)


def built_layers(model: Any) -> list:
    """Those of a model of either Keras, itself among them if it is: tf_keras tells no variables of others."""
    return [layer for layer in model._flatten_layers() if layer.built]


def optimizers_of(model: Any) -> list:
    """Those that `model`, or a layer or model in it, is compiled with or holds, also in lists and dicts.

    A `train_step` of one's own may need several.
    """
    held = {}
    for layer in model._flatten_layers() if hasattr(model, "_flatten_layers") else [model]:
        for value in vars(layer).values():
            if isinstance(value, dict):
                several = value.values()
            else:
                several = value if isinstance(value, (list, tuple)) else [value]
            held |= {id(each): each for each in several}
    # The classes are asked: some values make a variable when they are, or read one of all workers.
    of_optimizers = ("apply_gradients", "iterations", "variables")
    return [value for value in held.values() if all(hasattr(type(value), name) for name in of_optimizers)]


@contextlib.contextmanager
def while_set(holder: Any, **values: Any) -> Iterator[None]:
    """While this lasts, `holder` has these attributes; a `threading.local`, in this thread.

    Keras's objects, which track what they are given, do not notice.
    """
    held = vars(holder)
    before = {name: held[name] for name in values if name in held}
    held.update(values)
    try:
        yield
    finally:
        for name in values:
            held.pop(name, None)
        held.update(before)


def wrap(owner: Any, name: str, wrapper: Callable) -> None:
    """Replaces `owner.name` by `wrapper(original, …)`, once.

    Args:
      owner: a module or a class.
      name: of the function or method; an inherited method is replaced for `owner` alone.
      wrapper: gets the original first, then what the caller passes (`self` first, for a class).

    Raises:
      AttributeError: there is no such function.
    """
    original = getattr(owner, name)
    if hasattr(original, "_sparse_strategy_hook"):
        return

    @functools.wraps(original)
    def hook(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    hook._sparse_strategy_hook = True
    setattr(owner, name, hook)
