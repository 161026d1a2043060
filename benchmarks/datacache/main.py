"""How long is an epoch of reading and decoding, with each way to keep what has been read?

make bench-datacache                         measures all, publishes; 25 minutes, 18 GB; root, Linux with FUSE
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
from benchmarks.datacache import peers, tables, ways
from datacache import budget

EDGES = (96, 224)
IMAGES = {96: 2000, 224: 1000}  # JPEGs on the central storage
LATENCY_MS, MBIT = 2, 400  # of it
ROUNDS = 3
SHARERS = 4  # processes that read one data set at once
LATER_BYTES = 14 << 30  # of decoded samples: an epoch of them is long against the start of a pipeline
LATER_EPOCHS = 4
FLIPS = 300  # bits that flip in each store, one at a time
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


def run(*arguments, module: str = "measure") -> dict:
    """What a measuring process prints."""
    command = [sys.executable, "-m", f"benchmarks.datacache.{module}", *map(str, arguments)]
    result = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


@contextlib.contextmanager
def nothing_kept() -> Iterator[str]:
    """A directory for stores that is empty before, and gone afterwards."""
    shutil.rmtree(ways.MEMORY, ignore_errors=True)
    ways.MEMORY.mkdir()
    try:
        with tempfile.TemporaryDirectory(prefix="datacache_bench_") as scratch:
            yield scratch
    finally:
        shutil.rmtree(ways.MEMORY, ignore_errors=True)


def measure_ways(names, source: pathlib.Path, edge: int, images: int, rounds: int) -> list[dict]:
    """Each way, in turn, as often as there are rounds; a run, and a later one where something is kept."""
    jobs = {way: {"edge": edge, "images": images, "way": way, "runs": []} for way in names}
    sums = set()
    for number in range(rounds):
        for way in names:
            print(f"{edge} px, round {number + 1} of {rounds}: {way}", flush=True)
            with nothing_kept() as scratch:
                first = run("epochs", way, source, scratch, edge, images, 2)
                again = None
                if way in ways.KEEPS:
                    again = run("epochs", way, source, scratch, edge, images, 1)
                sums |= {found["sum"] for found in (first, again) if found}
                jobs[way]["runs"].append({"first": first, "again": again})
    if len(sums) != 1:
        raise RuntimeError(f"the ways do not agree on the images: {sums}")
    return list(jobs.values())


def measure_sharing(source: pathlib.Path, edge: int, images: int) -> dict:
    """Memory of several processes that read the same images at once, each through two epochs."""
    found = {"edge": edge, "images": images, "processes": SHARERS, "memory": {}}
    for way in (ways.PLAIN, ways.CACHE, ways.IN_MEMORY):
        print(f"{edge} px, {SHARERS} processes: {way}", flush=True)
        with nothing_kept() as scratch:
            arguments = map(str, ("hold", way, source, scratch, edge, images, 2))
            command = [sys.executable, "-m", "benchmarks.datacache.measure", *arguments]
            pipe = subprocess.PIPE
            started = [
                subprocess.Popen(command, stdin=pipe, stdout=pipe, env=_ENVIRONMENT, text=True)
                for _ in range(SHARERS)
            ]
            for process in started:
                while process.stdout.readline() not in ("ready\n", ""):
                    pass
            for process in started:
                process.stdin.write("look\n")
                process.stdin.flush()
            found["memory"][way] = [json.loads(process.stdout.readline()) for process in started]
            for process in started:
                process.communicate("end\n")
                if process.returncode:
                    raise RuntimeError(f"{' '.join(command)} failed")
    return found


def measure_later(names, edge: int, images: int, runs: int) -> list[dict]:
    """Epochs of runs that find all samples in memory; the ways take turns."""
    print(f"{edge} px, later runs over {images} images", flush=True)
    found = {way: [] for way in names}
    with nothing_kept():
        run("later", tables.CACHED, ways.MEMORY, edge, images, 0)
        for _ in range(runs):
            for way in names:
                found[way].append(run("later", way, ways.MEMORY, edge, images, LATER_EPOCHS))
    return [{"edge": edge, "way": way, "images": images, "runs": found[way]} for way in names]


def measure(quick: bool) -> dict:
    """Both sizes: from central storage, in several processes, again and again, and gathering alone."""
    free = budget.least(budget.limits("auto", "/dev/shm")).bytes
    if not quick and free < 1.1 * LATER_BYTES:
        needed = 1.1 * LATER_BYTES / 1e9
        raise RuntimeError(f"/dev/shm has room for {free / 1e9:.3g} GB; {needed:.3g} are needed.")
    results = {"epochs": [], "sharing": [], "later": [], "gather": []}
    results["storage"] = {"latency_ms": LATENCY_MS, "mbit": MBIT}
    missing = peers.install()
    results["peers"] = missing and f"grain, webdataset and LMDB could not be installed: {missing}"
    names = [way for way in ways.WAYS if not (missing and way in ways.PEERS)]
    for edge in EDGES[: 1 if quick else None]:
        images = 300 if quick else IMAGES[edge]
        with tempfile.TemporaryDirectory(prefix="datacache_bench_") as directory:
            source = pathlib.Path(directory) / "source"
            make_images(source, edge, images)
            peers.make_shards(source)
            with served(source, pathlib.Path(directory) / "mounted") as mounted:
                results["epochs"] += measure_ways(names, mounted, edge, images, 1 if quick else ROUNDS)
            results["sharing"].append(measure_sharing(source, edge, images))
        size, runs = (1 << 27, 2) if quick else (LATER_BYTES, 9)
        results["later"] += measure_later([tables.CACHED], edge, size // (edge * edge * 3), runs)
        results["later"] += measure_later([tables.CACHED, tables.TENSOR], edge, IMAGES[edge], runs)
        print(f"{edge} px, batches from memory", flush=True)
        rounds, images = (3, 1000) if quick else (15, (1 << 29) // (edge * edge * 3))
        results["gather"].append({"edge": edge, **run("gather", edge, images, rounds)})
    if not missing:
        print("our store beside LMDB", flush=True)
        edges = EDGES[: 1 if quick else None]
        results["stores"] = run(20 if quick else FLIPS, *edges, module="stores")
    return results


if __name__ == "__main__":
    report.main("datacache", __doc__, measure, tables.render)
