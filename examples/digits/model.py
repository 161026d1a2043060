"""A small residual network for images of any size."""

import keras

CLASSES = 10


def build_model() -> keras.Model:
    """A convolution, three residual blocks of 16, 32 and 64 channels, an average: 78,000 parameters.

    The last normalization of each block starts from zero, so that the block starts as its shortcut.
    BatchNorm's statistics forget within some steps: a phase with a new image size is short.
    """
    layers = keras.layers

    def convolution(x, channels, size=3, strides=1):
        return layers.Conv2D(channels, size, strides, padding="same", use_bias=False)(x)

    def norm(x, gamma="ones"):
        return layers.BatchNormalization(momentum=0.7, gamma_initializer=gamma)(x)

    image = keras.Input([None, None, 1])
    x = layers.ReLU()(norm(convolution(image, 16)))
    for channels in (16, 32, 64):
        strides = 1 if channels == 16 else 2
        y = layers.ReLU()(norm(convolution(x, channels, strides=strides)))
        y = norm(convolution(y, channels), gamma="zeros")
        x = layers.ReLU()(layers.Add()([y, norm(convolution(x, channels, 1, strides))]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(CLASSES, dtype="float32")(x))
