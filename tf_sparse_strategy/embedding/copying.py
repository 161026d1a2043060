"""Copies of models whose layers have all that they are, also what their configurations leave out."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras


def copy_of(model: Any, weights: list, convert: Callable[[Any], Any] = lambda layer: None) -> Any:
    """A copy of a functional or sequential model of Keras 3, outside a strategy's scope with whole tables.

    It is not compiled.

    Args:
      model: to be copied, with the models in it.
      weights: of the copy, or [] to leave them as they are drawn.
      convert: the copy of a layer, or None for one of its class and configuration.

    Raises:
      ValueError: as `require_dense_inputs`.
    """
    copies, inputs = _Copies(convert), None
    if not isinstance(model, keras.Sequential):
        inputs = keras.tree.map_structure(_input_like, model.input)
    require_dense_inputs(model)
    with _not_compiled(model):  # what it is compiled with may have no configuration
        copy = keras.models.clone_model(model, inputs, clone_function=copies, recursive=True)
    copies.finish(copy, weights)
    return copy


def copy_of_tf_keras(model: Any, weights: list) -> Any:
    """The same of tf_keras. Layers that were adapted to data, of which only they know, are shared."""
    import tf_keras

    def of_layer(layer):
        if getattr(layer, "_is_graph_network", False):  # a model within the model
            return tf_keras.models.clone_model(layer, clone_function=of_layer)
        shared = any(hasattr(inner, "adapt") for inner in layer._flatten_layers())
        return layer if shared else type(layer).from_config(layer.get_config())

    copy = tf_keras.models.clone_model(model, clone_function=of_layer)
    for pair in zip(model.layers, copy.layers, strict=True):
        for original, copied in zip(*(layer._flatten_layers() for layer in pair), strict=False):
            copied._trainable = original._trainable  # on which the order of weights depends
    copy.set_weights(weights)
    return copy


def models_in(model: Any) -> list:
    """`model` and the models within it; [] for what is no model of Keras 3."""
    if not isinstance(model, keras.Model):
        return []
    return [model, *(inner for layer in model.layers for inner in models_in(layer))]


def layers_in(model: Any) -> list:
    """The layers of a model, and of models within it; [] for what is no model of Keras 3."""
    return [layer for own in models_in(model) for layer in own.layers]


def graph_of(model: Any) -> Any:
    """The functional model that `model` is, or has, as a Sequential does."""
    return getattr(model, "_functional", None) or model


def nodes_of(model: Any) -> list:
    """The calls of operations that a functional or sequential model is made of; [] of others."""
    return [node for level in getattr(graph_of(model), "_nodes_by_depth", {}).values() for node in level]


@contextlib.contextmanager
def _not_compiled(model) -> Iterator[None]:
    """While this lasts, Keras does not compile copies of it, nor of models within it."""
    compiled = [m for m in models_in(model) if m.compiled]
    try:
        for m in compiled:
            m.compiled = False
        yield
    finally:
        for m in compiled:
            m.compiled = True


def require_dense_inputs(model: Any) -> None:
    """Raises ValueError where a copy of `model` would take other inputs than it does.

    Those of a Sequential, and of a model within another, become dense in Keras's copies.
    """
    models = models_in(model)
    for own in models if isinstance(model, keras.Sequential) else models[1:]:
        inputs = getattr(own, "inputs", None) or ()  # not before it is built
        if any(getattr(x, "sparse", False) or getattr(x, "ragged", False) for x in inputs):
            raise ValueError(
                f"the model {own.name!r} has sparse or ragged inputs, which Keras's copies lose but in an "
                "outermost functional model; make it one, or its layers tss.layers.ShardedEmbedding."
            )


def _input_like(tensor):
    """Also sparse, ragged or optional as it is, of which Keras's copies know nothing."""
    config = tensor._keras_history.operation.get_config()
    names = ("batch_shape", "dtype", "sparse", "ragged", "name", "optional")
    return keras.Input(**{name: config[name] for name in names if name in config})


class _Copies:
    """Copies layers, and remembers those that weights are not enough for.

    Vocabularies that a layer was adapted to are files ("assets") of Keras's, and what a layer computes from
    its mean and variance is computed when these are loaded.
    """

    def __init__(self, convert):
        self._convert = convert
        self._pairs = []

    def __call__(self, layer):
        copy = self._convert(layer) or _by_configuration(layer)
        if hasattr(layer, "save_assets"):  # without them it cannot be called
            _hand_over(layer, copy)
        self._pairs.append((layer, copy))
        return copy

    def finish(self, copy, weights):
        """Sets `weights`, or leaves them as they are drawn; frozen in `copy` is what is frozen."""
        if weights:
            copy.set_weights(weights)
        for layer, of_layer in self._pairs:
            if not weights and layer is not of_layer and getattr(layer, "weights", ()):
                raise ValueError(
                    f"layer {layer.name!r} has weights already, and its model has not been built: call the "
                    "model, or give it an Input, before it is copied."
                )
            for inner, of_inner in zip(flat(layer), flat(of_layer), strict=bool(weights)):
                if weights and hasattr(inner, "adapt"):
                    _hand_over(inner, of_inner)
                if hasattr(inner, "_trainable"):  # of layers in others no configuration tells
                    of_inner._trainable = inner._trainable
            lists = (getattr(each, "weights", ()) for each in (layer, of_layer))
            for own, of_own in zip(*lists, strict=bool(weights)):
                of_own.trainable = own.trainable


def flat(layer):
    """A layer, and those within it; an operation of Keras's, which a model has among its layers, has none."""
    return list(layer._flatten_layers()) if hasattr(layer, "_flatten_layers") else [layer]


def _hand_over(layer, copy):
    """As when a file is loaded: its variables, then its assets."""
    store: dict = {}
    layer.save_own_variables(store)
    copy.load_own_variables(store)
    if hasattr(layer, "save_assets"):
        with tempfile.TemporaryDirectory() as directory:
            layer.save_assets(directory)
            copy.load_assets(directory)


def _by_configuration(layer):
    """But for a `Lambda`, from whose configuration Keras makes no function, or one without its globals."""
    if type(layer) is not keras.layers.Lambda:
        return type(layer).from_config(layer.get_config())
    same = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
    return keras.layers.Lambda(layer.function, name=layer.name, dtype=layer.dtype_policy, **same)
