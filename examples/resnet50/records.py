"""ImageNet as TFRecords, the files that imagenet_to_gcs.py writes, and small ones that need no download.

`train-00000-of-01024`, `validation-00000-of-00128`, in one directory or in `train/` and `validation/`;
each record a `tf.train.Example` with a JPEG and a label from 1.
"""

import os
import re

import numpy as np
import tensorflow as tf

_SIDES = (40, 56, 72)  # of synthetic images, in pixels


def files(data_dir: str, split: str) -> list[str]:
    """The paths of a split, "train" or "validation".

    Raises:
      FileNotFoundError: there are none, or some are missing.
    """
    for pattern in (f"{split}-*", f"{split}/{split}-*"):
        found = sorted(tf.io.gfile.glob(os.path.join(data_dir, pattern)))
        total = re.search(r"-of-(\d+)$", found[0]) if found else None
        if total and len(found) != int(total[1]):
            raise FileNotFoundError(
                f"--data_dir={data_dir}: {len(found)} of the {int(total[1])} files of {split} are there. "
                "Copy the others, too."
            )
        if found:
            return found
    raise FileNotFoundError(
        f"--data_dir={data_dir}: no {split}-00000-of-... there or in {split}/ below it. Give the directory "
        "of ImageNet's TFRecords, or --synthetic for small ones that are made for you."
    )


def decode(canvas: int, label_offset: int):
    """The function from a record to (canvas uint8 [S, S, 3], aspect ratio float32, label int32)."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode_record(record):
        parsed = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(parsed["image/encoded"], channels=3)
        height, width = (tf.cast(side, tf.float32) for side in tf.unstack(tf.shape(image)[:2]))
        resized = tf.image.resize(image, [canvas, canvas], antialias=True)
        pixels = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
        label = tf.cast(parsed["image/class/label"], tf.int32) + label_offset
        return tf.ensure_shape(pixels, [canvas, canvas, 3]), width / height, label

    return decode_record


def aspect_of(record: tf.Tensor) -> tf.Tensor:
    """Width by height, without decoding the image."""
    sides = {f"image/{side}": tf.io.FixedLenFeature([], tf.int64) for side in ("height", "width")}
    parsed = tf.io.parse_single_example(record, sides)
    return tf.cast(parsed["image/width"] / parsed["image/height"], tf.float32)


def _example(image: np.ndarray, label: int) -> bytes:
    def of(kind, value):
        return tf.train.Feature(
            **{f"{kind}_list": getattr(tf.train, f"{kind.title()}List")(value=[value])}
        )

    height, width, _ = image.shape
    feature = {
        "image/encoded": of("bytes", tf.io.encode_jpeg(image).numpy()),
        "image/class/label": of("int64", label),
        "image/height": of("int64", height),
        "image/width": of("int64", width),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_synthetic(
    data_dir: str, images: dict[str, int], shards: dict[str, int], classes: int
) -> None:
    """Writes files like ImageNet's: noisy images of several shapes, a colour and a stripe for each class.

    Whatever is there already stays; several processes may write at a time.

    Args:
      data_dir: where.
      images: how many, by split.
      shards: files that they are divided over, by split.
      classes: labels 1 to `classes`.
    """
    for split, count in images.items():
        folder = os.path.join(data_dir, split)
        os.makedirs(folder, exist_ok=True)
        for shard in range(shards[split]):
            name = f"{split}-{shard:05}-of-{shards[split]:05}"
            path = os.path.join(folder, name)
            if os.path.exists(path):
                continue
            own = os.path.join(folder, f".{name}.{os.uname().nodename}.{os.getpid()}")
            with tf.io.TFRecordWriter(own) as writer:
                for number in range(shard, count, shards[split]):
                    label = number % classes
                    writer.write(_example(_picture(label, [split == "train", number]), label + 1))
            os.replace(own, path)


def _picture(label: int, seed: list[int]) -> np.ndarray:
    """uint8 [height, width, 3]; the same for the same seed."""
    random = np.random.default_rng(seed)
    height, width = random.choice(_SIDES, 2)
    colour = np.random.default_rng(label).uniform(32, 224, 3)
    wave = np.sin(np.arange(height)[:, None, None] * (label + 1) / 8)
    noise = random.normal(0, 24, [height, width, 3])
    return np.clip(colour + 24 * wave + noise, 0, 255).astype(np.uint8)
