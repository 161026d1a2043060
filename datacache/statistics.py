"""What a process took from which level, how fast, and how long it waited."""

from custom_ops.datacache_store import datacache_store as native
from datacache.memory import Memory

_NO_STORE = native.StoreStats(*[0] * len(native.StoreStats._fields))


def of(memory: Memory) -> dict[str, float]:
    """Counts since the process opened the store and the files.

    Reads from the local disk and from the central storage are those of all caches of the process.

    Args:
      memory: the cache's store.

    Returns:
      For each level (`memory`, `local`, `original`; `encoded` if there is one):
      `<level>_hit_rate`: of what was asked of it, but for `original`, which has all; `<level>_bytes`;
      `<level>_seconds` of reading, all threads together; `<level>_bytes_per_second`, their quotient: how fast
      it is for one thread. `stall_seconds`: waiting of those who iterate over datasets, for `batches`. And
      counts of what happened.
    """
    read = native.read_stats()
    batches, waited = native.waits(memory.name)
    reads = read.local_reads + read.original_reads - read.copies
    found: dict[str, float] = {
        "samples": memory.samples,
        "batches": batches,
        "stall_seconds": waited / 1e6,
        **_level("local", read.local_bytes, read.local_microseconds),
        "local_reads": read.local_reads,
        "local_hit_rate": _share(read.local_hits, reads),
        **_level("original", read.original_bytes, read.original_microseconds),
        "original_reads": read.original_reads,
        "copies": read.copies,
        "damaged_files": read.damaged,
    }
    encoded = native.store_stats(memory.encoded_path) if memory.encoded_path else _NO_STORE
    if memory.encoded_path:
        found |= {
            "encoded_stored": encoded.stored,
            "encoded_hit_rate": _share(encoded.hits, encoded.hits + encoded.misses),
            **_level("encoded", encoded.bytes_read, encoded.microseconds),
        }
    store = native.store_stats(memory.path) if memory.path else _NO_STORE
    return found | {
        "stored": store.stored,
        "capacity": store.capacity,
        "stored_bytes": store.stored * memory.sample_bytes,
        "memory_hits": store.hits,
        "memory_misses": store.misses,
        "memory_hit_rate": _share(store.hits, store.hits + store.misses),
        **_level("memory", store.bytes_read, store.microseconds),
        "rejected": store.rejected,
        "damaged_samples": store.corrupt + encoded.corrupt,
    }


def _level(name: str, size: int, microseconds: int) -> dict[str, float]:
    seconds = microseconds / 1e6
    return {
        f"{name}_bytes": size,
        f"{name}_seconds": seconds,
        f"{name}_bytes_per_second": size / seconds if seconds else 0.0,
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
