"""From a model with Embedding layers to the same model with sharded tables where that pays."""

import dataclasses
import functools
import inspect

import keras
import tensorflow as tf
from absl import logging

from tf_sparse_strategy import agreement
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.embedding import placement as placements
from tf_sparse_strategy.embedding import separable, slices
from tf_sparse_strategy.embedding.copying import copy_of, flat, layers_in, models_in, nodes_of
from tf_sparse_strategy.embedding.layer import ShardedEmbedding
from tf_sparse_strategy.embedding.optimizer_copies import optimizer_like
from tf_sparse_strategy.hooking import extended_of


def shard_embeddings(
    model: keras.Model,
    min_rows: int = 10_000,
    placement: str = "auto",
    ids_per_step: int | None = None,
    links: LinkModel = placements.BY_BYTES,
) -> keras.Model:
    """A copy of `model` whose large Embedding layers are `ShardedEmbedding`s, with the same weights.

    Call it under `strategy.scope()`, on all workers. What is decided for each table, and why, is logged.
    Tables of other classes stay whole, also of subclasses of Embedding, which may use the table in other
    ways, e.g. tie it to an output layer; so do those within wrappers. A layer that another operation reads,
    or a `Lambda` by a name in its function, is the very same in both models.

    Args:
      model: functional or sequential. For a model of one's own class, make the layers
        `tss.layers.ShardedEmbedding` where it makes them; so too for tables that do not fit on one worker.
      min_rows: with placement "auto", tables with fewer rows stay whole; default 10,000.
      placement: "auto" (default), by `min_rows`, by columns (no fewer than workers) and, where `ids_per_step`
        is given, by cost, or "columns", for all tables that can be divided.
      ids_per_step: distinct ids of one worker in a step; None, the default, compares no costs.
      links: the measured links, for the costs; by default only bytes count. Of both the first worker's hold.

    Returns:
      A new model; compiled as `model` is, if it is, with the same losses and metrics, and an optimizer that
      starts afresh.

    Raises:
      ValueError: an argument is not one of those, there is no `SparseStrategy` in scope, the model was made
        outside of it, or it or a model in it cannot be copied: its class makes it otherwise than from inputs
        and outputs, it has sparse or ragged inputs and is a Sequential or in another, or it is not built but
        one of its layers is.
      TypeError: it is no model of Keras 3.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> with tss.SparseStrategy().scope():
      ...     words = keras.Input([5], dtype="int32")
      ...     model = keras.Model(words, keras.layers.Embedding(50_000, 8)(words))
      ...     model = tss.shard_embeddings(model)
      >>> type(model.layers[1]) is tss.layers.ShardedEmbedding
      True

    Source: for the costs EmbRace (Li et al., ICPP 2022), section 4.1.2, table 2.
    """
    if placement not in ("auto", "columns"):
        raise ValueError(f"placement={placement!r} is not 'auto' or 'columns'.")
    extended = extended_of(tf.distribute.get_strategy())
    if extended is None:
        raise ValueError("shard_embeddings works under `with strategy.scope():` of a SparseStrategy.")
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"shard_embeddings copies models of Keras 3, not {type(model)}. For tf_keras, make the layers "
            "tf_sparse_strategy.legacy_keras.ShardedEmbedding where the model is made."
        )
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        raise _of_its_own_class(model)
    _require_made_in_scope(model, extended)
    topology = extended.collectives.topology
    mine = None if ids_per_step is None else int(ids_per_step), dataclasses.astuple(links)
    ids_per_step, measured = agreement.gather(mine, extended.collectives)[0]  # others may count otherwise
    links = LinkModel(*measured)
    of_optimizer = _refused_optimizer(model)
    elsewhere = _used_elsewhere(model)

    def convert(layer):
        if id(layer) in elsewhere:
            logging.info("shard_embeddings: both models have layer %r: %s", layer.name, elsewhere[id(layer)])
            return layer
        if type(layer) is not keras.layers.Embedding:
            _tell_of_tables_in(layer)
            return None
        reason = of_optimizer or _obstacle(layer)
        if reason is None and placement == "auto":
            itemsize = tf.as_dtype(layer.variable_dtype).size
            table = placements.Table(layer.input_dim, layer.output_dim, itemsize)
            reason = placements.reason_to_keep_whole(table, topology, min_rows, ids_per_step, links)
        shape = f"table of {layer.name!r} [{layer.input_dim}, {layer.output_dim}]"
        if reason is not None:
            logging.info("shard_embeddings: the %s stays whole: %s", shape, reason)
            return None
        logging.info("shard_embeddings: the %s is divided by columns", shape)
        return ShardedEmbedding.from_config(layer.get_config())

    copy = copy_of(model, model.get_weights() if model.built else [], convert)
    for own, of_own in zip(models_in(model), models_in(copy), strict=False):
        if type(own) is not type(of_own):
            raise _of_its_own_class(own)
    if model.compiled:
        _compile_like(copy, model)
    return copy


def _of_its_own_class(model):
    return ValueError(
        f"the model {model.name!r} is of a class of its own, which cannot be copied layer by layer; make its "
        "layers tss.layers.ShardedEmbedding instead of keras.layers.Embedding."
    )


def _compile_like(copy, model):
    """With the same losses and metrics, which may have no configuration, and an optimizer like its own."""
    if type(model).compile is not keras.Model.compile:  # its own arguments, which it tells Keras's way
        copy.compile_from_config(model.get_compile_config())
        return
    options = dict(model._compile_config.config)
    if model.optimizer is not None:
        copies = list(zip(model.weights, copy.weights, strict=True)) if model.built else []
        options["optimizer"] = optimizer_like(model.optimizer, copies)
    copy.compile(**options, auto_scale_loss=False)
    if copy.built and copy.optimizer is not None:
        copy.optimizer.build(copy.trainable_variables)


def _used_elsewhere(model) -> dict[int, str]:
    """Why the copy must have the very layer, by its id: what else reads it, or a weight, reads this one."""
    having: dict[int, dict] = {}  # layers of a model, by their ids, by the id of what is in them
    for layer in layers_in(model):
        if isinstance(layer, keras.layers.Layer) and not models_in(layer):
            for part in (*layer._flatten_layers(), *layer.weights):
                having.setdefault(id(part), {})[id(layer)] = layer
    found = {}
    for layers in having.values():
        if len(layers) > 1:
            found |= dict.fromkeys(layers, "another has the same weight")
    for operation, held in (pair for own in models_in(model) for pair in _held_by_operations(own)):
        found |= dict.fromkeys(having.get(id(held), ()), f"{operation.name!r} reads it, too")
    return found


def _held_by_operations(model):
    """(operation, object) of what a model's operations are given, and what `Lambda`s' functions hold."""
    for node in nodes_of(model):
        held = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        if isinstance(node.operation, keras.layers.Lambda):
            held += [*_held_by(node.operation.function), *(node.operation.arguments or {}).values()]
        yield from ((node.operation, each) for each in held)


def _held_by(function) -> list:
    """What a function refers to by name, and has been given, as far as that can be told."""
    if isinstance(function, functools.partial):
        return [*_held_by(function.func), *function.args, *function.keywords.values()]
    function = getattr(function, "python_function", function)  # within one of TensorFlow's
    held = [getattr(function, "__self__", None), *(getattr(function, "__defaults__", None) or ())]
    held += (getattr(function, "__kwdefaults__", None) or {}).values()
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # none of Python's, or one of whose variables is not assigned yet
        return held
    return [*held, *variables.nonlocals.values(), *variables.globals.values()]


def _require_made_in_scope(model, extended):
    """Raises ValueError for variables of no strategy: they may have other values on each worker."""
    for weight in model.weights:
        if extended_of(slices.strategy_of(weight)) is not extended:
            raise ValueError(
                f"{weight.path!r} of the model {model.name!r} was not made in the scope of this strategy, so "
                "workers may have different values of it. Make or load the model inside `with "
                "strategy.scope():`, where shard_embeddings is called."
            )


def _tell_of_tables_in(layer) -> None:
    """Logs those that stay whole, as the layer is no plain `Embedding`."""
    for inner in flat(layer):
        if isinstance(inner, keras.layers.Embedding) and not isinstance(inner, ShardedEmbedding):
            where = "it is of another class" if inner is layer else f"it is within {layer.name!r}"
            logging.info("shard_embeddings: the table of %r stays whole: %s", inner.name, where)


def _refused_optimizer(model) -> str | None:
    """Why the optimizer that the model is compiled with could train no slice; None if it can."""
    for optimizer in _innermost(getattr(model, "optimizer", None)):
        reason = separable.refused_optimizer(optimizer)
        if reason is None and optimizer.loss_scale_factor is not None:
            reason = "its loss_scale_factor divides no gradient of rows"
        if reason is not None:
            return f"the model's optimizer is {type(optimizer).__name__}, and {reason}"
    return None


def _innermost(optimizer) -> list:
    """The optimizers that an optimizer wraps, to scale the loss or for some variables each; else itself."""
    if optimizer is None:
        return []
    wrapped = getattr(optimizer, "optimizers", None) or [getattr(optimizer, "inner_optimizer", None)]
    return [inner for held in wrapped if held is not None for inner in _innermost(held)] or [optimizer]


def _obstacle(layer) -> str | None:
    """Why the table of `layer` cannot be divided; None if it can."""
    if layer.lora_rank or layer.lora_enabled or layer.quantization_mode:
        return "it is adapted by LoRA or quantized"
    return separable.refused_regularizer(
        layer.embeddings_regularizer
    ) or separable.refused_constraint(layer.embeddings_constraint)
