"""Copies of models whose layers have all that they are, also what their configurations leave out."""

import tempfile
from collections.abc import Callable
from typing import Any


def copy_of(model: Any, weights: list, convert: Callable[[Any], Any] = lambda layer: None) -> Any:
    """A copy of a functional or sequential model of Keras 3, outside a strategy's scope with whole tables.

    Args:
      model: to be copied, with the models in it.
      weights: of the copy, or [] to leave them as they are drawn.
      convert: the copy of a layer, or None for one of its class and configuration.
    """
    import keras

    copies = _Copies(convert)
    copy = keras.models.clone_model(model, clone_function=copies, recursive=True)
    if weights:
        copies.take_weights(copy, weights)
    return copy


def copy_of_tf_keras(model: Any, weights: list) -> Any:
    """The same of tf_keras. Layers that were adapted to data, of which only they know, are shared."""
    import tf_keras

    def of_layer(layer):
        if getattr(layer, "_is_graph_network", False):  # a model within the model
            return tf_keras.models.clone_model(layer, clone_function=of_layer)
        return layer if hasattr(layer, "adapt") else type(layer).from_config(layer.get_config())

    copy = tf_keras.models.clone_model(model, clone_function=of_layer)
    copy.set_weights(weights)
    return copy


class _Copies:
    """Copies layers, and remembers those that weights are not enough for.

    Vocabularies that a layer was adapted to are files ("assets") of Keras's, and what a layer computes from
    its mean and variance is computed when these are loaded.
    """

    def __init__(self, convert):
        self._convert = convert
        self._adapted = []

    def __call__(self, layer):
        copy = self._convert(layer) or _by_configuration(layer)
        if hasattr(layer, "save_assets"):
            _hand_over(layer, copy)  # as when a file is loaded, before the assets
            with tempfile.TemporaryDirectory() as directory:
                layer.save_assets(directory)
                copy.load_assets(directory)
        elif hasattr(layer, "adapt"):
            self._adapted.append((layer, copy))
        return copy

    def take_weights(self, copy, weights):
        copy.set_weights(weights)
        for layer, of_layer in self._adapted:
            _hand_over(layer, of_layer)


def _hand_over(layer, copy):
    store: dict = {}
    layer.save_own_variables(store)
    copy.load_own_variables(store)


def _by_configuration(layer):
    """But for a `Lambda`, from whose configuration Keras makes no function, or one without its globals."""
    import keras

    if type(layer) is not keras.layers.Lambda:
        return type(layer).from_config(layer.get_config())
    same = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
    return keras.layers.Lambda(layer.function, name=layer.name, dtype=layer.dtype_policy, **same)
