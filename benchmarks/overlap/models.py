"""Models whose layers take a known time on an accelerator that is not there, and hold known weights.

A layer waits instead of computing: workers that share this machine's cores do not slow each other down.
"""

import dataclasses
import time

import keras
import tensorflow as tf

CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Layer:
    """Weights and milliseconds of the forward pass; backward takes twice as long."""

    weights: int
    forward: float


# In the proportions of ResNet-50 (stages), an encoder of 12 blocks, and an LSTM below a softmax; with a tenth
# of ResNet-50's weights, so that a step on slow links takes a second. Buckets are to be a tenth, too.
MODELS = {
    "cnn": [
        *[Layer(5_000, 10.0)] * 6,
        *[Layer(17_500, 10.0)] * 8,
        *[Layer(70_000, 10.0)] * 12,
        *[Layer(275_000, 10.0)] * 6,
    ],
    "transformer": [*[Layer(65_000, 8.0), Layer(130_000, 17.0)] * 12],
    "lm": [Layer(500_000, 85.0), Layer(500_000, 85.0), Layer(1_250_000, 135.0)],
    "small": [Layer(100_000, 5.0)] * 4,
}


def num_bytes(name: str) -> int:
    """Of the model's weights, float32."""
    return 4 * sum(layer.weights for layer in MODELS[name])


def forward_seconds(name: str) -> float:
    """Of one forward pass."""
    return sum(layer.forward for layer in MODELS[name]) * 1e-3


def build(name: str) -> keras.Model:
    """The model; maps [rows, CLASSES] to logits of that shape."""
    layers = [Waiting(layer) for layer in MODELS[name]]
    return keras.Sequential([keras.layers.Input([CLASSES]), *layers])


class Waiting(keras.layers.Layer):
    """y = x w_i, with as many w as the layer has weights, and as much time as it takes."""

    initializer = "ones"

    def __init__(self, layer: Layer):
        super().__init__()
        self._layer = layer

    def build(self, shape):
        self.scale = self.add_weight(shape=(self._layer.weights,), initializer=self.initializer, name="scale")

    def call(self, x):
        seconds = self._layer.forward * 1e-3

        @tf.custom_gradient
        def layer(x, scale):
            def gradient(dy):
                return self._gradients(waited(dy, 2 * seconds), x, scale)

            return waited(self._result(x, scale), seconds), gradient

        return layer(x, tf.convert_to_tensor(self.scale))

    def _result(self, x, scale):
        return x * scale[0]

    def _gradients(self, dy, x, scale):
        return dy * scale[0], tf.fill(tf.shape(scale), tf.reduce_mean(dy * x))


def waited(x: tf.Tensor, seconds: float) -> tf.Tensor:
    """`x`, some time later; takes no processor."""

    def wait(value):
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype, stateful=False), x.shape)
