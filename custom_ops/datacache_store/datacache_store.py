"""Samples in shared memory, and files read through local copies; thin wrappers of the operations.

`gather`, `put`, `complete`, `fetch`, `keep`, `read` and `timed` are for pipelines: not stateful, so that
iterators stay possible to save. The others are called eagerly. The store's layout and what it promises:
store.h. CPU only; no gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from custom_ops.library import library

_ops = library(__file__)


class StoreStats(NamedTuple):
    """Of the file: samples (room in the table), payload_bytes of each, capacity, stored (samples). Of
    this process: hits, misses, bytes_read, put, rejected (no room), corrupt, microseconds in gathering."""

    samples: int
    payload_bytes: int
    capacity: int
    stored: int
    hits: int
    misses: int
    bytes_read: int
    put: int
    rejected: int
    corrupt: int
    microseconds: int


class ReadStats(NamedTuple):
    """Of this process: reads and bytes from local copies and from the originals, microseconds in the
    latter (all threads together), copies made, damaged data met, reads that found a copy, microseconds of
    reading copies. Reading where records begin is counted in bytes and microseconds alone."""

    local_reads: int
    local_bytes: int
    original_reads: int
    original_bytes: int
    original_microseconds: int
    copies: int
    damaged: int
    local_hits: int
    local_microseconds: int


def create(path: str, samples: int, payload_bytes: int) -> None:
    """Makes an empty store for samples 0 ... samples - 1.

    Raises:
      tf.errors.ResourceExhaustedError: no room for its table, or `path` exists.
    """
    _ops().datacache_create(samples=samples, payload_bytes=payload_bytes, path=path)


def payload_bytes(specs: Sequence[tf.TensorSpec]) -> int:
    """Bytes of a sample of these components: each begins on a multiple of 64."""
    sizes = [spec.shape.num_elements() * spec.dtype.size for spec in specs]
    return sum(-(-size // 64) * 64 for size in sizes)


def set_capacity(path: str, capacity: int) -> None:
    """Sets how many samples a store may hold, for all processes; never below what it holds."""
    _ops().datacache_set_capacity(capacity=capacity, path=path)


def keep_open(paths: Sequence[str]) -> None:
    """Lets go of all stores that this process has open but these: of deleted ones the memory is free then."""
    _ops().datacache_keep_open(paths=paths)


def gather(
    path: str, ids: tf.Tensor, specs: Sequence[tf.TensorSpec]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Copies B samples out of a store.

    Cost: one copy of each sample, by several threads; a checksum if it is new to this process.

    Args:
      path: the store.
      ids: int64 [B].
      specs: the components of a sample, shapes fully defined.

    Returns:
      Which were found, bool [B], and for each component a tensor [B, ...], anything where not found.
    """
    found, values = _ops().datacache_gather(
        ids=ids, path=path, T=[s.dtype for s in specs], shapes=[s.shape for s in specs]
    )
    return found, values


def examine(path: str, ids: tf.Tensor) -> None:
    """Maps and checks those of samples `ids`, int64 [B], that are there and new to this process.

    As `gather` would. Cost: a read of their memory, in its order, by several threads.
    """
    _ops().datacache_examine(ids=ids, path=path)


def put(path: str, ids: tf.Tensor, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Stores B samples that are absent, as far as there is room; returns `values`, to be used.

    Args:
      path: the store.
      ids: int64 [B].
      values: tensors [B, ...] of the dtypes and shapes that the store was made for.
    """
    return _ops().datacache_put(ids=ids, values=values, path=path)


def complete(
    found: tf.Tensor, values: Sequence[tf.Tensor], fresh: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What `gather` returned, with rows for the samples that it did not find.

    Cost: a copy of `fresh`; none if nothing was found, then it is `fresh` itself.

    Args:
      found: bool [B].
      values: tensors [B, ...].
      fresh: tensors [absent, ...], in the order of the samples that were not found.
    """
    return _ops().datacache_complete(found=found, values=values, fresh=fresh)


def release(path: str, ids: tf.Tensor) -> None:
    """Makes samples `ids`, int64 [B], absent; others may take their room."""
    _ops().datacache_release(ids=ids, path=path)


def fetch(path: str, sample: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """An encoded sample, of any length: whether it was found, and a scalar string."""
    return _ops().datacache_fetch(id=sample, path=path)


def keep(path: str, sample: tf.Tensor, data: tf.Tensor, decoded_path: str) -> tf.Tensor:
    """Stores an encoded sample if there is room, and none in the store of decoded ones; returns `data`."""
    return _ops().datacache_keep(id=sample, data=data, path=path, decoded_path=decoded_path)


def timed(batches: tf.data.Dataset, cache: str) -> tf.data.Dataset:
    """The same, and counts how long those who iterate wait for batches: `waits(cache)`, any name, tells."""
    variant = _ops().datacache_timed_dataset(tf.data.experimental.to_variant(batches), cache=cache)
    same = tf.data.experimental.from_variant(variant, batches.element_spec)
    same.batches = batches  # whose Python functions must live as long
    return same


def waits(cache: str) -> tuple[int, int]:
    """Batches of a cache that this process has waited for, and microseconds."""
    batches, microseconds = _ops().datacache_wait_stats(cache=cache).numpy().tolist()
    return batches, microseconds


def read(original, copy, stamp, offset, length, record: bool) -> tf.Tensor:
    """Reads a record of a file, or all of it, through its local copy.

    All arguments but the last are scalar tensors.

    A copy that is absent, outdated or damaged is made anew, once; without room for it the original is
    read. Data that is damaged in the original too is read twice.

    Args:
      original: any URL that TensorFlow reads.
      copy: path of the copy; empty for none.
      stamp: int64, the identity of the original's content.
      offset: int64, the first byte.
      length: int64, number of bytes.
      record: the part is one TFRecord with its framing, which is checked and taken off; otherwise it must
        be the whole file.

    Raises:
      tf.errors.DataLossError: damaged in the original, which may have been changed.
      tf.errors.NotFoundError: neither is there.
    """
    return _ops().datacache_read(
        original=original, copy=copy, stamp=stamp, offset=offset, length=length, record=record
    )


def record_index(original: str | bytes, copy: str, stamp: int) -> tf.Tensor:
    """Where the R records of a TFRecord file begin, and where the last one ends: int64 [R + 1]."""
    return _ops().datacache_record_index(original=original, copy=copy, stamp=stamp)


def check_copy(copy: str) -> bool:
    """Whether the bytes of a local copy are those that were written."""
    return bool(_ops().datacache_check_copy(copy=copy))


def verify(path: str) -> int:
    """Reads a whole store; returns how many samples are damaged."""
    return int(_ops().datacache_verify(path=path))


def store_stats(path: str) -> StoreStats:
    """What a store holds, and what this process did with it."""
    return StoreStats(*_ops().datacache_stats(path=path).numpy().tolist())


def read_stats() -> ReadStats:
    """What this process read from local copies and from the originals."""
    return ReadStats(*_ops().datacache_read_stats().numpy().tolist())
