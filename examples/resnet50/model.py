"""ResNet-50 v1.5, of this file or of the TensorFlow Model Garden, for images of any size."""

import tensorflow as tf

from examples.common.garden import importing

_BLOCKS = {50: (3, 4, 6, 3), 14: (1, 1, 1, 1)}
_MOMENTUM, _EPSILON = 0.9, 1e-5


def resnet(depth: int = 50, width: int = 64, classes: int = 1000) -> tf.keras.Model:
    """ResNet with bottleneck blocks whose 3 x 3 convolution has the stride, "v1.5".

    The last normalization of each block starts from zero, so that the block starts as its shortcut.

    Args:
      depth: 50, or 14 for one block in each of the four stages.
      width: channels of the first stage's 3 x 3 convolutions.
      classes: logits.

    Example:
      >>> resnet(depth=14, width=8, classes=5)(tf.zeros([2, 33, 47, 3])).shape
      TensorShape([2, 5])

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015, table 1; the stride and
    the zeros from Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 5.1.
    """
    layers = tf.keras.layers

    def convolution(x, channels, size=1, strides=1):
        # One per layer: Keras's initializers give the same values whenever they are called.
        he = tf.keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        settings = {"padding": "same", "use_bias": False, "kernel_initializer": he}
        return layers.Conv2D(channels, size, strides, **settings)(x)

    def norm(x, gamma="ones"):
        return layers.BatchNormalization(
            momentum=_MOMENTUM, epsilon=_EPSILON, gamma_initializer=gamma
        )(x)

    def relu(x):
        return layers.Activation("relu")(x)

    image = layers.Input([None, None, 3])
    x = relu(norm(convolution(image, width, 7, 2)))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(_BLOCKS[depth]):
        channels = width << stage
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            y = relu(norm(convolution(x, channels)))
            y = relu(norm(convolution(y, channels, 3, strides)))
            y = norm(convolution(y, 4 * channels), gamma="zeros")
            shortcut = x if block else norm(convolution(x, 4 * channels, 1, strides))
            x = relu(layers.Add()([y, shortcut]))
    return tf.keras.Model(image, _logits(layers.GlobalAveragePooling2D()(x), classes))


def _logits(x, classes: int):
    """In float32, whatever else computes in."""
    normal = tf.keras.initializers.RandomNormal(stddev=0.01)
    return tf.keras.layers.Dense(classes, kernel_initializer=normal, dtype="float32")(x)


def garden(classes: int = 1000) -> tf.keras.Model:
    """The Model Garden's ResNet-50, with normalizations and logits as above.

    Raises:
      ImportError: tf-models-official is not installed.
      RuntimeError: `tf.keras` is Keras 3.
    """
    with importing():
        from official.vision.modeling import classification_model
        from official.vision.modeling.backbones import resnet as backbones
        from official.vision.modeling.layers import nn_blocks
    any_image = tf.keras.layers.InputSpec(shape=[None, None, None, 3])
    backbone = backbones.ResNet(
        50, input_specs=any_image, norm_momentum=_MOMENTUM, norm_epsilon=_EPSILON
    )
    for block in backbone.layers:
        if isinstance(block, nn_blocks.BottleneckBlock):
            block._norm3.gamma.assign(tf.zeros_like(block._norm3.gamma))
    averaged = classification_model.ClassificationModel(
        backbone, classes, input_specs=any_image, skip_logits_layer=True
    )
    return tf.keras.Model(averaged.inputs, _logits(averaged.output, classes))
