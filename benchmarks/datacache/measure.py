"""One measuring process; prints JSON.

    python -m benchmarks.datacache.measure epochs WAY SOURCE SCRATCH EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure hold WAY SOURCE SCRATCH EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure later WAY DIRECTORY EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure gather EDGE IMAGES ROUNDS
"""

import itertools
import json
import math
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
from benchmarks.datacache.tables import INTO_ONE, TENSOR

GATHERED = 256  # rows of a batch that is gathered
TRAINED = 64  # rows of a batch of one worker in training
HELD = 8  # batches, as a pipeline and its consumer hold some
PASSES = 4  # epochs that are gathered at a time


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


def _of_cache(directory: str, edge: int, images: int):
    """Makes the dataset of a cache that has all samples."""
    cache = _synthetic(directory, edge, images)
    if cache.stats()["stored"] < images:
        for _ in itertools.islice(cache.dataset(TRAINED), cache.steps_per_epoch(TRAINED)):
            pass  # as training fills it: in random order
    if cache.stats()["stored"] < images:
        raise RuntimeError(f"{images} images of {edge} px do not fit: {cache.memory.limit}")
    return lambda: cache.dataset(TRAINED)


def _of_tensor(directory: str, edge: int, images: int):
    """Makes a dataset of the same batches from this process's memory: tf.data alone."""
    rng = np.random.default_rng(0)
    pixels = tf.constant(rng.integers(0, 249, [images, edge, edge, 3], dtype=np.uint8))
    order, steps = tf.constant(rng.permutation(images)), math.ceil(images / TRAINED)

    def load(step):
        begin = step % steps * TRAINED
        return tf.gather(pixels, order[begin : begin + TRAINED])

    return lambda: tf.data.Dataset.range(1 << 62).map(load, tf.data.AUTOTUNE).prefetch(2)


def later(way: str, directory: str, edge: int, images: int, count: int) -> dict:
    """Seconds to make a dataset, and of its epochs, from asking for a first batch on."""
    make = (_of_tensor if way == TENSOR else _of_cache)(directory, edge, images)
    begin = time.perf_counter()
    run = iter(make())
    found = {"dataset": time.perf_counter() - begin, "epochs": []}
    for _ in range(count):
        begin = time.perf_counter()
        for _ in range(math.ceil(images / TRAINED)):
            next(run)
        found["epochs"].append(time.perf_counter() - begin)
    return found


def gather(edge: int, images: int, rounds: int) -> dict:
    """Seconds to gather all samples in random order, batch by batch, and to copy them in plain memory.

    Gathering is `DataCache.dataset`, from asking for a first batch to the last, without making the iterator
    or ending it. The copies are memcpy()s of one sample each, in random order too, from an array into `HELD`
    batches in turn, whose pages have been touched, by one thread and by as many as there are cores; and into
    one batch, which the processor's cache may hold, as it does not where batches are made to be used.
    """
    images = images // GATHERED * GATHERED
    steps = PASSES * images // GATHERED
    threads = os.cpu_count()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        cache = _synthetic(directory, edge, images)
        cache.warm(progress=False)
        order = np.random.default_rng(1).permutation(images).reshape(-1, GATHERED)
        batches = cache.dataset(GATHERED, epochs=PASSES)
        source = np.full([images, edge * edge * 3], 1, np.uint8)
        targets = np.full([HELD, GATHERED, edge * edge * 3], 1, np.uint8)

        def gathered():
            run = iter(batches)
            begin = time.perf_counter()
            for _ in range(steps):
                next(run)
            return time.perf_counter() - begin

        def copy(rows, to):
            np.take(source, rows, axis=0, out=to, mode="clip")

        def copied(workers, held):
            parts = [slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(GATHERED), workers)]
            run = map if workers == 1 else pool.map
            begin = time.perf_counter()
            for step in range(steps):
                row, target = order[step % len(order)], targets[step % held]
                list(run(copy, [row[part] for part in parts], [target[part] for part in parts]))
            return time.perf_counter() - begin

        methods = {
            "gather": gathered,
            "copy, 1 thread": lambda: copied(1, HELD),
            f"copy, {threads} threads": lambda: copied(threads, HELD),
            f"copy, {threads} threads, {INTO_ONE}": lambda: copied(threads, 1),
        }
        found = {name: [] for name in methods}
        with futures.ThreadPoolExecutor(threads) as pool:
            for _ in range(rounds + 1):
                for name, run in methods.items():
                    found[name].append(run())
    moved = steps * GATHERED * edge * edge * 3
    return {"bytes": moved, "seconds": {name: values[1:] for name, values in found.items()}}


def main() -> None:
    kind, *arguments = sys.argv[1:]
    numbers = [int(argument) if argument.isdigit() else argument for argument in arguments]
    result = {"epochs": epochs, "hold": hold, "later": later, "gather": gather}[kind](*numbers)
    result.pop("keeps", None)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
