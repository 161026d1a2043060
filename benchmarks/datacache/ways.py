"""The ways to train from a folder of JPEGs that are compared; each gives the batches of one epoch."""

import itertools
import pathlib

import tensorflow as tf

import datacache

BATCH = 64
MEMORY = pathlib.Path("/dev/shm/datacache-benchmark")  # removed after each run
_AUTO = tf.data.AUTOTUNE


def decode(edge: int):
    """From a JPEG's bytes to uint8 [edge, edge, 3]."""

    def image(data):
        return tf.ensure_shape(tf.io.decode_jpeg(data, channels=3), [edge, edge, 3])

    return image


def _files(source: pathlib.Path) -> list[str]:
    return sorted(str(path) for path in source.glob("*/*.jpg"))


def _decoded(source: pathlib.Path, edge: int) -> tf.data.Dataset:
    """Every image once, decoded in parallel, in the order of the files."""
    paths = tf.data.Dataset.from_tensor_slices(_files(source))
    return paths.map(lambda path: decode(edge)(tf.io.read_file(path)), _AUTO)


def _batched(dataset: tf.data.Dataset):
    """As `fit` would repeat it: one object, iterated once per epoch."""
    dataset = dataset.batch(BATCH).prefetch(_AUTO)
    return lambda epoch: dataset


def plain(source, scratch, edge):
    """Reads and decodes in each epoch, in another order each time."""
    paths = tf.data.Dataset.from_tensor_slices(_files(source)).shuffle(1 << 20, seed=0)
    return _batched(paths.map(lambda path: decode(edge)(tf.io.read_file(path)), _AUTO))


def cache_in_memory(source, scratch, edge):
    """`Dataset.cache()`: in this process's memory."""
    return _batched(_decoded(source, edge).cache().shuffle(1024, seed=0))


def cache_in_file(source, scratch, edge):
    """`Dataset.cache(file)`: on the local disk."""
    return _batched(_decoded(source, edge).cache(str(scratch / "cache")).shuffle(1024, seed=0))


def snapshot(source, scratch, edge):
    """`Dataset.snapshot(path)`: on the local disk."""
    return _batched(_decoded(source, edge).snapshot(str(scratch / "snapshot")).shuffle(1024, seed=0))


def with_datacache(source, scratch, edge):
    """DataCache with local copies, in shared memory."""
    image = decode(edge)
    cache = datacache.DataCache(
        datacache.ImageFolder(str(source)),
        lambda data, label: image(data),
        scratch / "local",
        memory_dir=str(MEMORY),
    )
    # One pipeline for all epochs, as `fit` with steps_per_epoch has it.
    run, steps = iter(cache.dataset(BATCH)), cache.steps_per_epoch(BATCH)
    return lambda epoch: itertools.islice(run, steps)


WAYS = {
    "plain tf.data": plain,
    "cache() in memory": cache_in_memory,
    "cache(file)": cache_in_file,
    "snapshot": snapshot,
    "DataCache": with_datacache,
}
# What a later process finds again.
KEEPS = ("plain tf.data", "cache(file)", "snapshot", "DataCache")
