"""Which tables of a model may have delayed rows, why others may not, and which ids the next batch has."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_sparse_strategy.embedding import lazy, slices
from tf_sparse_strategy.embedding.copying import graph_of, layers_in, nodes_of

_OPTIONS = (
    "momentum", "weight_decay", "use_ema", "clipnorm", "global_clipnorm", "clipvalue",
    "loss_scale_factor", "gradient_accumulation_steps",
)  # fmt: skip


def updates_rows(optimizer: Any) -> bool:
    """Whether `optimizer` is of a kind that, without options, updates a row from its gradient alone."""
    return type(optimizer) in (keras.optimizers.SGD, lazy.LazyAdam, lazy.Adagrad)


def optimizer_reason(optimizer: Any) -> str | None:
    """Why `optimizer` cannot update some rows of a step later; None if it can, to the bit."""
    if not updates_rows(optimizer):
        return (
            f"{type(optimizer).__name__} is not known to update each row from its own gradient alone, as "
            "SGD without momentum, tss.optimizers.LazyAdam and tss.optimizers.Adagrad do"
        )
    option = next((name for name in _OPTIONS if getattr(optimizer, name, None)), None)
    if option is not None:
        return f"{type(optimizer).__name__}({option}={getattr(optimizer, option)!r}) needs more than the row"
    return None if optimizer.built else "the optimizer was not built before the step was traced"


def variable_reason(variable: Any) -> str | None:
    """Why the table `variable` must be updated as a whole; None if it need not."""
    for name in ("regularizer", "constraint"):
        if getattr(variable, name, None) is not None:
            return f"its {name} acts on all rows"
    return None


def tables_of(model: Any) -> tuple[list, Callable | None, dict[str, str]]:
    """What a model's tables will be asked for.

    Returns:
      (tables, the function from a batch's inputs to their ids, why other tables are left out by name).
    """
    of_optimizer = optimizer_reason(model.optimizer)
    layers = {id(layer._embeddings): layer for layer in layers_in(model) if hasattr(layer, "_embeddings")}
    tables, inputs, left_out = [], [], {}
    for variable in model.trainable_variables:
        if slices.divided(variable) is None:
            continue
        ids, of_ids = ids_of(model, layers.get(id(variable)))
        reason = of_optimizer or variable_reason(variable) or of_ids
        if reason is None:
            tables.append(slices.of(variable))
            inputs.append(ids)
        else:
            left_out[variable.path] = reason
    return tables, keras.Model(graph_of(model).input, inputs) if tables else None, left_out


def ids_of(model: Any, layer: Any) -> tuple[Any, str | None]:
    """(what `layer` is called with, symbolically; why the next ids cannot be told, None if they can)."""
    calls = [n for n in nodes_of(model) if n.operation is layer or layer in layers_in(n.operation)]
    if not calls:
        return None, "its ids are not computed from the inputs of a functional model"
    if len(calls) > 1:
        return None, "the model looks it up more than once in a step"
    [call] = calls
    if call.operation is not layer:  # a model within the model
        ids, reason = ids_of(call.operation, layer)
        if reason is not None:
            return None, reason
        [given] = call.arguments.args or [call.arguments.kwargs["inputs"]]
        ids = keras.Model(graph_of(call.operation).input, ids)(given)
    elif len(call.input_tensors) > 1:
        return None, "its rows are weighted"
    else:
        [ids] = call.input_tensors
    before = keras.Model(graph_of(model).input, ids)
    if before.variables:  # statistics, seeds: running on a batch more may change them
        return None, "the layers that compute its ids have variables"
    return ids, None


def flat(ids: Any) -> tf.Tensor:
    """Ids of any kind that a layer takes, [n]."""
    if isinstance(ids, tf.SparseTensor):
        return ids.values
    return tf.reshape(ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids, [-1])
