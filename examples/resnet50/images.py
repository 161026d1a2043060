"""Boxes in images and what is cut out there: pure functions of sizes and seeds.

An image is kept as a canvas: resized to S x S pixels whatever its shape, and its aspect ratio is known.
A box is a part of it, (top, left, bottom, right) in parts of height and width; what is cut out has the
image's proportions again.
"""

import numpy as np
import tensorflow as tf

_TRIES = 10
_RATIOS = (3 / 4, 4 / 3)
_SHORT_SIDE = 1.14  # of an image, by the size that is cut out of its middle
# ImageNet's, per channel, of pixels in 0..255.
_MEAN, _DEVIATION = (123.68, 116.78, 103.94), (58.40, 57.12, 57.38)


def random_boxes(seeds: tf.Tensor, aspects: tf.Tensor, min_area: float) -> tf.Tensor:
    """A random part of each image, half of them mirrored (left > right).

    Its area is at least `min_area` of the image's, its aspect ratio 3:4 to 4:3, both uniform (the latter's
    logarithm); where ten tries do not fit into the image, the whole image.

    Args:
      seeds: int64 [b, 2].
      aspects: float32 [b].
      min_area: above 0, at most 1.

    Returns:
      float32 [b, 4].

    Source: Szegedy et al., "Going Deeper with Convolutions", 2014, section 6.
    """
    spec = tf.TensorSpec([2 * _TRIES + 3], tf.float32)
    draws = tf.map_fn(
        lambda seed: tf.random.stateless_uniform([2 * _TRIES + 3], seed),
        seeds,
        fn_output_signature=spec,
    )
    low, high = (float(np.log(ratio)) for ratio in _RATIOS)
    areas = min_area + (1 - min_area) * draws[:, :_TRIES]
    # By the image's own aspect ratio: that of the box in parts of the image.
    shapes = tf.exp(low + (high - low) * draws[:, _TRIES : 2 * _TRIES]) / aspects[:, None]
    widths, heights = tf.sqrt(areas * shapes), tf.sqrt(areas / shapes)
    fits = (widths <= 1) & (heights <= 1)
    first = tf.argmax(fits, axis=1)  # 0 where none does
    none = ~tf.reduce_any(fits, axis=1)
    width = tf.where(none, 1.0, tf.gather(widths, first, batch_dims=1))
    height = tf.where(none, 1.0, tf.gather(heights, first, batch_dims=1))
    top, left = (1 - height) * draws[:, -3], (1 - width) * draws[:, -2]
    mirrored = draws[:, -1] < 0.5
    right = left + width
    ends = tf.where(mirrored, right, left), tf.where(mirrored, left, right)
    return tf.stack([top, ends[0], top + height, ends[1]], axis=1)


def middle_boxes(aspects: tf.Tensor, size: int, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """`height` x `width` pixels in the middle of images whose shorter side has 1.14 `size` pixels.

    They may reach beyond the image, which is black there.

    Args:
      aspects: float32 [b].

    Returns:
      float32 [b, 4].
    """
    short = tf.cast(int(_SHORT_SIDE * size), tf.float32)
    part_of_height = tf.cast(height, tf.float32) / (short * tf.maximum(1.0, 1 / aspects))
    part_of_width = tf.cast(width, tf.float32) / (short * tf.maximum(1.0, aspects))
    top, left = (1 - part_of_height) / 2, (1 - part_of_width) / 2
    return tf.stack([top, left, 1 - top, 1 - left], axis=1)


def rectangle(aspect: float, size: int) -> tuple[int, int]:
    """(height, width) of a batch whose images have this aspect ratio in the mean.

    The shorter side is `size`, the longer a multiple of 8.

    Example:
      >>> rectangle(1.5, 288), rectangle(1.0, 288), rectangle(0.75, 288)
      ((288, 432), (288, 288), (384, 288))
    """
    if aspect < 1:
        return max(size, int(size / aspect) // 8 * 8), size
    return size, max(size, int(size * aspect) // 8 * 8)


def cut(canvases: tf.Tensor, boxes: tf.Tensor, height, width) -> tf.Tensor:
    """What is in the boxes, standardized by ImageNet's mean and deviation.

    Args:
      canvases: uint8 [b, S, S, 3].
      boxes: float32 [b, 4].
      height, width: of the result, in pixels.

    Returns:
      float32 [b, height, width, 3].
    """
    rows = tf.range(tf.shape(boxes)[0])
    pixels = tf.image.crop_and_resize(canvases, boxes, rows, tf.stack([height, width]))
    return (pixels - tf.constant(_MEAN)) / tf.constant(_DEVIATION)
