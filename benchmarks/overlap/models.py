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


# In the proportions of ResNet-50 (two layers for each stage), an encoder of 6 blocks, and an LSTM below a
# softmax; with a twentieth of ResNet-50's weights, so that a step on slow links takes a second and the
# processor is idle for most of it. Buckets are to be a twentieth, too.
MODELS = {
    "cnn": [
        *[Layer(7_500, 22.0)] * 2,
        *[Layer(35_000, 26.0)] * 2,
        *[Layer(210_000, 40.0)] * 2,
        *[Layer(412_500, 22.0)] * 2,
    ],
    "transformer": [Layer(195_000, 37.0)] * 6,
    "lm": [Layer(250_000, 60.0), Layer(250_000, 60.0), Layer(625_000, 100.0)],
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
