"""The ways to train from a folder of JPEGs that are compared; each gives the batches of an epoch."""

import itertools
import pathlib

import tensorflow as tf

import datacache
from benchmarks.datacache import peers

BATCH = 64
MEMORY = pathlib.Path("/dev/shm/datacache-benchmark")  # removed after each run
_THREADS = 32  # with which DataCache and tf.data read and decode, where their own choice is not the question
_AUTO = tf.data.AUTOTUNE


def decode(edge: int):
    """From a JPEG's bytes to uint8 [edge, edge, 3]."""

    def image(data):
        return tf.ensure_shape(tf.io.decode_jpeg(data, channels=3), [edge, edge, 3])

    return image


def _files(source: pathlib.Path) -> list[str]:
    return sorted(str(path) for path in source.glob("*/*.jpg"))


def _decoded(source: pathlib.Path, edge: int, at_once=_THREADS, shuffled=False) -> tf.data.Dataset:
    """Every image once, in the order of the files or another; `at_once` of them are read at a time."""
    paths = tf.data.Dataset.from_tensor_slices(_files(source))
    if shuffled:
        paths = paths.shuffle(1 << 20, seed=0)
    return paths.map(lambda path: decode(edge)(tf.io.read_file(path)), at_once)


def _batched(dataset: tf.data.Dataset, threads: int = _THREADS):
    """As `fit` would repeat it: one object, iterated once per epoch. 0 threads: one per core."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    dataset = dataset.batch(BATCH).prefetch(_AUTO).with_options(options)
    return lambda epoch: dataset


def plain(source, scratch, edge):
    """Reads and decodes in each epoch, in another order each time."""
    return _batched(_decoded(source, edge, shuffled=True))


def autotuned(source, scratch, edge):
    """The same as most write it: as many at a time as tf.data finds good, by one thread per core."""
    return _batched(_decoded(source, edge, _AUTO, shuffled=True), threads=0)


def cache_in_memory(source, scratch, edge):
    """`Dataset.cache()`: in this process's memory."""
    return _batched(_decoded(source, edge).cache().shuffle(1024, seed=0))


def cache_in_file(source, scratch, edge):
    """`Dataset.cache(file)`: on the local disk."""
    return _batched(_decoded(source, edge).cache(str(scratch / "cache")).shuffle(1024, seed=0))


def snapshot(source, scratch, edge):
    """`Dataset.snapshot(path)`: on the local disk."""
    return _batched(_decoded(source, edge).snapshot(str(scratch / "snapshot")).shuffle(1024, seed=0))


def _datacache(source, edge, local, memory="auto"):
    image = decode(edge)
    folder = datacache.ImageFolder(str(source))
    cache = datacache.DataCache(folder, lambda data, _: image(data), local, memory, memory_dir=str(MEMORY))
    # One pipeline for all epochs, as `fit` with steps_per_epoch has it.
    run, steps = iter(cache.dataset(BATCH)), cache.steps_per_epoch(BATCH)
    return lambda epoch: itertools.islice(run, steps)


def unkept(source, scratch, edge):
    """DataCache's threads read and decode in each epoch: what filling is compared with."""
    return _datacache(source, edge, None, memory=0)


def in_memory(source, scratch, edge):
    """DataCache in shared memory alone."""
    return _datacache(source, edge, None)


def with_copies(source, scratch, edge):
    """DataCache with local copies, in shared memory."""
    return _datacache(source, edge, scratch / "local")


def grain(source, scratch, edge):
    """grain with its cache in memory."""
    return peers.with_grain(_files(source), BATCH)


def webdataset(source, scratch, edge):
    """webdataset with its cache in memory."""
    return peers.with_webdataset(source, BATCH)


PLAIN, CACHE = f"tf.data, {_THREADS} threads", "cache() in memory"
IN_MEMORY, WITH_COPIES = "DataCache without copies", "DataCache"
UNKEPT = "DataCache, nothing kept"
WAYS = {
    PLAIN: plain,
    "tf.data, AUTOTUNE": autotuned,
    CACHE: cache_in_memory,
    "cache(file)": cache_in_file,
    "snapshot": snapshot,
    "grain, cached": grain,
    "webdataset, cached": webdataset,
    UNKEPT: unkept,
    IN_MEMORY: in_memory,
    WITH_COPIES: with_copies,
}
PEERS = ("grain, cached", "webdataset, cached")  # that must be installed
# What a later process finds again.
KEEPS = ("cache(file)", "snapshot", IN_MEMORY, WITH_COPIES)
