"""One run of one way, in a process of its own: seconds of its epochs.

    python -m benchmarks.datacache.measure WAY SOURCE SCRATCH EDGE IMAGES EPOCHS
    python -m benchmarks.datacache.measure gather EDGE IMAGES ROUNDS

Prints JSON.
"""

import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

import datacache
from benchmarks.datacache import ways


def epochs(way: str, source: str, scratch: str, edge: int, images: int, count: int) -> dict:
    """Seconds of each epoch, from asking for its first batch to the end of its last."""
    of_epoch = ways.WAYS[way](pathlib.Path(source), pathlib.Path(scratch), edge)
    seconds, sums = [], []
    for epoch in range(count):
        begin = time.perf_counter()
        rows, total = 0, 0
        for batch in of_epoch(epoch):
            rows += batch.shape[0]
            total += int(batch[:, 0, 0, 0].numpy().astype(np.int64).sum())
        seconds.append(time.perf_counter() - begin)
        sums.append(total)
        if rows != images or total != sums[0]:
            raise RuntimeError(f"{way}: {rows} images of {images}, sum {total} and not {sums[0]}")
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
    return {"seconds": seconds, "sum": sums[0], "resident_bytes": resident}


def gather(edge: int, images: int, rounds: int) -> dict:
    """Seconds to gather all samples, batch by batch, and to copy as many bytes between two arrays."""
    shape, batch = [edge, edge, 3], ways.BATCH
    rng = np.random.default_rng(0)
    pixels = tf.constant(rng.integers(0, 255, shape, dtype=np.uint8))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        source = datacache.Samples(images, lambda i: i)
        cache = datacache.DataCache(
            source, lambda i: pixels + tf.cast(i % 7, tf.uint8), memory_dir=directory, version="gather"
        )
        cache.warm(progress=False)
        order = rng.permutation(images // batch * batch).reshape(-1, batch)
        load = tf.function(cache.load, input_signature=[tf.TensorSpec([batch], tf.int64)])
        ids = [tf.constant(row) for row in order]
        # The copies go from a random sample to its place in a new batch, as a gather would.
        stored = [np.empty([batch, *shape], np.uint8) for _ in order]
        for block in stored:
            block[:] = 1
        found = {"gather": [], "copy": []}
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            for row in ids:
                load(row)
            found["gather"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            for block in stored:
                np.copyto(np.empty_like(block), block)
            found["copy"].append(time.perf_counter() - begin)
    moved = order.size * int(np.prod(shape))
    return {"bytes": moved, "seconds": {name: values[1:] for name, values in found.items()}}


if __name__ == "__main__":
    if sys.argv[1] == "gather":
        result = gather(*map(int, sys.argv[2:]))
    else:
        result = epochs(*sys.argv[1:4], *map(int, sys.argv[4:]))
    print(json.dumps(result))
