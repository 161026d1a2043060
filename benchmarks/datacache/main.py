"""How long is an epoch of reading and decoding, with each way to keep what has been read?

make bench-datacache                         measures all, publishes; root, Linux with FUSE
python -m benchmarks.datacache.main --quick  few images, one size; prints only
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from benchmarks import report
from benchmarks.datacache import tables, ways

EDGES = (96, 224)
IMAGES = {96: 6000, 224: 2000}
LATENCY_MS, MBIT = 2, 400  # of the central storage
ROUNDS = 3
_ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def make_images(directory: pathlib.Path, edge: int, count: int) -> None:
    """JPEGs with the contents of photographs as far as decoding goes: smooth noise, 10 folders."""
    rng = np.random.default_rng(edge)
    for i in range(count):
        folder = directory / f"class_{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = rng.uniform(0, 255, [1, edge // 6, edge // 6, 3])
        pixels = tf.cast(tf.image.resize(coarse, [edge, edge], "bicubic")[0], tf.uint8)
        (folder / f"{i:06}.jpg").write_bytes(tf.io.encode_jpeg(pixels, quality=90).numpy())


@contextlib.contextmanager
def served(source: pathlib.Path, mountpoint: pathlib.Path) -> Iterator[pathlib.Path]:
    """The directory as central storage."""
    mountpoint.mkdir()
    command = [sys.executable, "-m", "benchmarks.datacache.slow_mount"]
    command += [str(source), str(mountpoint), str(LATENCY_MS), str(MBIT)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline().strip() != "mounted":
            raise RuntimeError("The slow storage could not be mounted: this needs root and /dev/fuse.")
        yield mountpoint
    finally:
        server.stdin.close()
        server.wait(timeout=20)


def run(*arguments) -> dict:
    """What a measuring process prints."""
    command = [sys.executable, "-m", "benchmarks.datacache.measure", *map(str, arguments)]
    result = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def measure_storage(name: str, source: pathlib.Path, edge: int, images: int, rounds: int) -> list[dict]:
    """Each way, in turn, as often as there are rounds; a run, and a later one where something is kept."""
    kind = {"storage": name, "edge": edge, "images": images}
    jobs = {way: {**kind, "way": way, "runs": []} for way in ways.WAYS}
    sums = set()
    for _ in range(rounds):
        for way in ways.WAYS:
            with tempfile.TemporaryDirectory(prefix="datacache_bench_") as scratch:
                shutil.rmtree(ways.MEMORY, ignore_errors=True)
                ways.MEMORY.mkdir()
                first = run(way, source, scratch, edge, images, 3)
                again = run(way, source, scratch, edge, images, 1) if way in ways.KEEPS else None
                sums |= {first["sum"]}
                jobs[way]["runs"].append({"first": first, "again": again})
    shutil.rmtree(ways.MEMORY, ignore_errors=True)
    if len(sums) != 1:
        raise RuntimeError(f"the ways do not agree on the images: {sums}")
    return list(jobs.values())


def measure(quick: bool) -> dict:
    """Both sizes, from central storage and from the local disk; and gathering alone."""
    results = {"epochs": [], "gather": [], "storage": {"latency_ms": LATENCY_MS, "mbit": MBIT}}
    for edge in EDGES[: 1 if quick else None]:
        images = 500 if quick else IMAGES[edge]
        with tempfile.TemporaryDirectory(prefix="datacache_bench_") as directory:
            source = pathlib.Path(directory) / "source"
            make_images(source, edge, images)
            rounds = 1 if quick else ROUNDS
            with served(source, pathlib.Path(directory) / "mounted") as mounted:
                results["epochs"] += measure_storage("central", mounted, edge, images, rounds)
            results["epochs"] += measure_storage("local disk", source, edge, images, rounds)
        results["gather"].append({"edge": edge, **run("gather", edge, images, 3 if quick else 15)})
    return results


if __name__ == "__main__":
    report.main("datacache", __doc__, measure, tables.render)
