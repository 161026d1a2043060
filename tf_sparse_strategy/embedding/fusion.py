"""Functional models of Keras 3 look up, together, all divided tables whose ids are inputs of the model.

Layer by layer, each table would have exchanges of its own: three or six per table and step.
"""

from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.copying import nodes_of
from tf_sparse_strategy.embedding.table import ShardedTable, looked_up_ahead


def run_graph(original, model, inputs, *args, call_fn=None, **kwargs):
    """A hook on Keras 3's functional models, which call layers one by one."""
    if call_fn is not None or not isinstance(inputs, list):  # shapes are inferred
        return original(model, inputs, *args, call_fn=call_fn, **kwargs)
    with looked_up_ahead(_lookups(model, inputs)):
        return original(model, inputs, *args, **kwargs)


def _lookups(model, inputs) -> list[tuple[ShardedTable, Any]]:
    """(layer, ids) of the model's divided tables that are called with one of its inputs, and nothing else."""
    pairs = zip(model.inputs, tf.nest.flatten(inputs), strict=True)
    given = {id(reference): x for reference, x in pairs if tf.is_tensor(x)}
    found = {}
    for node in nodes_of(model):
        layer, references = node.operation, node.input_tensors
        if not isinstance(layer, ShardedTable) or node.arguments.kwargs or len(references) != 1:
            continue
        if type(layer).call is not ShardedTable.call:  # it may look up other ids
            continue
        # Its call adds a loss, or is recomputed, with the lookup, for its gradient.
        if layer.activity_regularizer is not None or layer._remat_mode is not None:
            continue
        held = slices.divided(layer._embeddings) if layer.built else None
        if held is not None and id(references[0]) in given:
            ids = given[id(references[0])]
            found[id(layer), id(ids)] = layer, ids
    return list(found.values())
