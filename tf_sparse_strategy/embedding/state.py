"""Slices read, written and saved as the whole tables and slots they are part of: hooks on Keras.

Each gets Keras's function first and is Keras's function where there are no slices. What reads a table is for
all workers together; in a save the first worker asks, and the others answer (`saving_tables`).
"""

import contextlib
import types
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding import files, slices
from tf_sparse_strategy.hooking import extended_of, optimizers_of


def _divided(variables: Iterable) -> Any:
    """The first slice of a table that is on several workers; None if there is none."""
    return next((held for v in variables if (held := slices.divided(v)) is not None), None)


def of_model(model: Any) -> Any:
    """The first divided table of `model`; None if there is none."""
    return _divided(getattr(model, "weights", ()))


def of_training(model: Any) -> Any:
    """The first divided table of `model`, or slot of its optimizer; None if there is none."""
    table = of_model(model)
    if table is not None:  # which has no truth value
        return table
    lists = [optimizer.variables for optimizer in optimizers_of(model)]
    return _divided(slot for slots in lists if not callable(slots) for slot in slots)


def saving_tables(model: Any) -> contextlib.AbstractContextManager:
    """On the first worker, while it saves `model`; the others are in `send_tables`."""
    table = of_training(model)
    return contextlib.nullcontext() if table is None else table.slices.wholes.asking()


def send_tables(model: Any) -> None:
    """On the other workers, while the first saves `model`: sends it their columns."""
    table = of_training(model)
    if table is not None:
        table.slices.wholes.answer()


def require_copy_outside(model: Any) -> None:
    """Raises where no copy of `model` can be made that holds whole tables."""
    if extended_of(tf.distribute.get_strategy()) is not None:
        raise ValueError("a model with sharded tables is exported outside of `with strategy.scope():`.")
    if not getattr(model, "inputs", None):
        raise NotImplementedError(
            f"the model {model.name!r} is of a class of its own, whose sharded tables cannot be made whole "
            "to be exported. Save it as .weights.h5, load that with one worker, and export there."
        )


def get_weights(original, layer):
    """Whole tables, and the other weights."""
    if _divided(layer.weights) is None:
        return original(layer)
    return [slices.whole(variable) for variable in layer.weights]


def batch_get_value(original, variables):
    """tf_keras: whole tables among the values."""
    if _divided(variables) is None:
        return original(variables)
    return [slices.whole(variable) for variable in variables]


def batch_set_value(original, pairs):
    """tf_keras: this worker's columns of whole tables, as legacy .h5 files have them, among the values."""

    def own(variable, value):
        is_own = slices.of(variable) is None or tuple(value.shape) == tuple(variable.shape)
        return value if is_own else slices.own(variable, value)

    return original([(variable, own(variable, value)) for variable, value in pairs])


def int_shape(original, x):
    """tf_keras: the whole shape of a slice, with which legacy .h5 files are compared by name."""
    return original(x) if slices.of(x) is None else slices.of(x).partition.shape


def set_weights(original, layer, weights):
    """Takes this worker's columns of whole tables."""
    variables = layer.weights
    if len(weights) == len(variables):
        pairs = zip(variables, weights, strict=True)
        weights = [slices.own(variable, value) for variable, value in pairs]
    return original(layer, weights)


def count_params(original, weights):
    """Counts whole tables."""

    def whole(variable):  # others as they are: tf_keras's vocabularies among them have no shape
        held = slices.of(variable)
        return variable if held is None else types.SimpleNamespace(shape=tf.TensorShape(held.partition.shape))

    return original([whole(variable) for variable in weights])


def save_own_variables(original, optimizer, store):
    """Writes whole slots."""
    if _divided(optimizer.variables) is None:
        original(optimizer, store)
        return
    for index, variable in enumerate(optimizer.variables):
        files.write(store, str(index), variable)


def load_own_variables(original, optimizer, store):
    """Takes this worker's parts of the whole slots."""
    variables = optimizer.variables
    if _divided(variables) is not None and len(store.keys()) == len(variables):
        store = _Own(store, variables)
    original(optimizer, store)


class _Own:
    """A store of an optimizer's variables, of which this worker's columns are read."""

    def __init__(self, store, variables):
        self._store, self._variables = store, variables

    def keys(self):
        return self._store.keys()

    def __getitem__(self, key):
        return files.read(self._store, key, self._variables[int(key)])
