"""Four models, as far as communication sees them: emulated layers, whose gradients are not all alike."""

import keras
import tensorflow as tf

from benchmarks.overlap.models import CLASSES, Layer, Waiting

# Weights are where such models have them: VGG's in the last layers, ResNet's in the late ones, an encoder's
# everywhere, a language model's in few and large layers. Two thirds of a step's time is the backward pass's.
MODELS = {
    "VGG-like": [*[Layer(40_000, 15.0)] * 8, Layer(4_000_000, 5.0), Layer(2_000_000, 3.0)],
    "ResNet-like": [*[Layer(20_000, 8.0)] * 8, *[Layer(120_000, 8.0)] * 8, *[Layer(500_000, 8.0)] * 4],
    "Transformer": [*[Layer(170_000, 5.0), Layer(330_000, 10.0)] * 8],
    "LM": [Layer(3_000_000, 15.0), Layer(1_000_000, 20.0), Layer(3_000_000, 30.0)],
}


class Emulated(Waiting):
    """y = x, some time later; the weights' gradient is proportional to them: its entries differ."""

    initializer = "random_normal"

    def _result(self, x, scale):
        return x

    def _gradients(self, dy, x, scale):
        return dy, scale * tf.reduce_mean(dy * x)


def build(name: str) -> keras.Model:
    """The model; maps [rows, CLASSES] to logits of that shape."""
    return keras.Sequential([keras.layers.Input([CLASSES]), *(Emulated(layer) for layer in MODELS[name])])


def parameters(name: str) -> int:
    """Of the model."""
    return sum(layer.weights for layer in MODELS[name])


def seconds(name: str) -> float:
    """Of one step's forward and backward pass."""
    return 3e-3 * sum(layer.forward for layer in MODELS[name])
