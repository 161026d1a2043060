"""Fills a cache's store before training, and names a sample that cannot be decoded."""

import re
from typing import Any

import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache.pipeline import READY, untuned

_SEEN_AT_ONCE = 1 << 20  # slots that are looked through for each batch, to see whether the store is full
_PLUMBING = re.compile(r"\s*\[\[{{.*|{{function_node.*?}} *", re.DOTALL)  # of TensorFlow's messages


def fill(cache: Any, ids: tf.data.Dataset, todo: int, shows_progress: bool) -> None:
    """Reads and decodes samples until all are in memory, or there is no room for more.

    Args:
      cache: a `DataCache` that has a store.
      ids: their numbers, in batches, int64.
      todo: how many there are.
      shows_progress: whether to draw a bar.

    Raises:
      ValueError: a sample cannot be read or decoded; the message names it.
    """
    bar = tf.keras.utils.Progbar(todo, unit_name="sample") if shows_progress else None
    load = cache.load  # the dataset is to hold this, not the cache

    def filled(batch):
        # Their shape would be known beforehand where all batches are of one size, and nothing be loaded.
        with tf.control_dependencies(tf.nest.flatten(load(batch))):
            return tf.identity(tf.size(batch, tf.int64))

    done, number, full, rejected = 0, 0, False, _rejected(cache.memory)
    between_looks = 1 + len(cache) // _SEEN_AT_ONCE
    batches = iter(untuned(ids.map(filled, tf.data.AUTOTUNE).prefetch(READY)))
    while done < todo and not full:
        try:
            done += int(next(batches))
        except tf.errors.OpError:
            _name_culprit(cache, next(iter(ids.skip(number))))
            raise
        if number % between_looks == 0:
            full = all(now > before for now, before in zip(_rejected(cache.memory), rejected, strict=True))
        number += 1
        if bar:
            bar.update(done, finalize=full or done == todo)


def _name_culprit(cache, ids: tf.Tensor) -> None:
    """Raises an error that names the first of these samples that cannot be loaded, if there is one."""
    one_by_one = iter(tf.data.Dataset.from_tensor_slices(ids).batch(1).map(cache.load))
    for sample in ids.numpy().tolist():
        try:
            next(one_by_one)
        except tf.errors.OpError as error:
            name, reason = cache.source.name_of(sample), _PLUMBING.sub("", error.message)
            raise ValueError(f"{name} cannot be read or decoded: {reason}") from error


def _rejected(memory) -> list[int]:
    """Samples for which this process found no room, in each store."""
    paths = filter(None, (memory.path, memory.encoded_path))
    return [native.store_stats(path).rejected for path in paths]
