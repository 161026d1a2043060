"""One measuring process; prints JSON.

    python -m benchmarks.datacache.measure epochs WAY SOURCE SCRATCH EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure hold WAY SOURCE SCRATCH EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure warm DIRECTORY EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure gather EDGE IMAGES ROUNDS
"""

import json
import os
import pathlib
import sys
import tempfile
import time
from concurrent import futures

import numpy as np
import tensorflow as tf

import datacache
from benchmarks.datacache import ways

GATHERED = 256  # rows of a batch


def epochs(way: str, source: str, scratch: str, edge: int, images: int, count: int) -> dict:
    """Seconds of each epoch, from asking for its first batch to the end of its last."""
    of_epoch = ways.WAYS[way](pathlib.Path(source), pathlib.Path(scratch), edge)
    seconds, sums = [], []
    for epoch in range(count):
        begin = time.perf_counter()
        rows, total = 0, 0
        for batch in of_epoch(epoch):
            rows += batch.shape[0]
            total += int(np.asarray(batch)[:, 0, 0, 0].astype(np.int64).sum())
        seconds.append(time.perf_counter() - begin)
        sums.append(total)
        if rows != images or total != sums[0]:
            raise RuntimeError(f"{way}: {rows} images of {images}, sum {total} and not {sums[0]}")
    return {"seconds": seconds, "sum": sums[0], "keeps": of_epoch}


def hold(*arguments) -> dict:
    """Bytes of memory after some epochs, when all processes that share it have come as far.

    Memory that n processes share counts an n-th in each.
    """
    found = epochs(*arguments)
    print("ready", flush=True)
    sys.stdin.readline()
    memory = {}
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, size, _ = line.split()
        memory[name.rstrip(":")] = int(size) * 1024
    print(json.dumps({"private": memory["Pss_Anon"], "shared": memory["Pss_Shmem"]}), flush=True)
    sys.stdin.readline()  # until all have looked
    return {"sum": found["sum"]}


def _synthetic(directory: str, edge: int, images: int) -> datacache.DataCache:
    """A cache whose decoding costs little: what is measured comes after it."""
    pixels = tf.constant(np.random.default_rng(0).integers(0, 249, [edge, edge, 3], dtype=np.uint8))
    source = datacache.Samples(images, lambda i: i, "numbers")
    return datacache.DataCache(
        source, lambda i: pixels + tf.cast(i % 7, tf.uint8), memory_dir=directory, version="synthetic"
    )


def warm(directory: str, edge: int, images: int, count: int) -> dict:
    """Seconds of epochs of which all samples are in memory, from asking for the first batch on."""
    cache = _synthetic(directory, edge, images)
    if cache.stats()["stored"] < images:
        cache.warm(progress=False)
    if cache.stats()["stored"] < images:
        raise RuntimeError(f"{images} images of {edge} px do not fit: {cache.memory.limit}")
    run, steps = iter(cache.dataset(GATHERED)), cache.steps_per_epoch(GATHERED)
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        for _ in range(steps):
            next(run)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds}


def gather(edge: int, images: int, rounds: int) -> dict:
    """Seconds to gather all samples in random order, batch by batch, and to copy them in plain memory.

    The copies are memcpy()s of one sample each, in the same order, from an array into a batch that is there
    already (its pages have been touched), by one thread and by as many as there are cores.
    """
    images = images // GATHERED * GATHERED
    threads = os.cpu_count()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        cache = _synthetic(directory, edge, images)
        cache.warm(progress=False)
        load = tf.function(cache.load, input_signature=[tf.TensorSpec([GATHERED], tf.int64)])
        order = np.random.default_rng(1).permutation(images).reshape(-1, GATHERED)
        ids = [tf.constant(row) for row in order]
        source = np.full([images, edge * edge * 3], 1, np.uint8)
        target = np.full([GATHERED, edge * edge * 3], 1, np.uint8)
        parts = np.array_split(np.arange(GATHERED), threads)

        def gathered():
            for row in ids:
                load(row)

        def copy(rows, to):
            np.take(source, rows, axis=0, out=to, mode="clip")

        def copied():
            for row in order:
                copy(row, target)

        def copied_by(pool):
            to = [target[part[0] : part[-1] + 1] for part in parts]
            for row in order:
                list(pool.map(copy, [row[part] for part in parts], to))

        found = {"gather": [], "copy, 1 thread": [], f"copy, {threads} threads": []}
        with futures.ThreadPoolExecutor(threads) as pool:
            for _ in range(rounds + 1):
                for name, run in zip(found, (gathered, copied, lambda: copied_by(pool)), strict=True):
                    begin = time.perf_counter()
                    run()
                    found[name].append(time.perf_counter() - begin)
    moved = order.size * edge * edge * 3
    return {"bytes": moved, "seconds": {name: values[1:] for name, values in found.items()}}


def main() -> None:
    kind, *arguments = sys.argv[1:]
    numbers = [int(argument) if argument.isdigit() else argument for argument in arguments]
    result = {"epochs": epochs, "hold": hold, "warm": warm, "gather": gather}[kind](*numbers)
    result.pop("keeps", None)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
