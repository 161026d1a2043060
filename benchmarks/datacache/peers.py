"""grain and webdataset, each with its own cache in memory, and LMDB; installed for this benchmark alone."""

import importlib
import itertools
import math
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import tensorflow as tf

from benchmarks import report

SHARDS = "shards"  # folder of tar files beside the classes' folders
_INSTALLED = report.ROOT / ".cache" / "datacache_peers"
_REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
_IMAGES_PER_SHARD = 250


def install() -> str:
    """Installs them; returns why not, "" if they are there."""
    arguments = ["--quiet", "--no-deps", "--require-hashes", "--upgrade", "--target", str(_INSTALLED)]
    command = [sys.executable, "-m", "pip", "install", *arguments, "-r", str(_REQUIREMENTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stderr.strip()[-300:] if result.returncode else ""


def make_shards(source: pathlib.Path) -> None:
    """The images of a folder of folders as tar files, which webdataset reads."""
    paths = sorted(source.glob("*/*.jpg"), key=lambda path: path.name)
    (source / SHARDS).mkdir()
    for shard, first in enumerate(range(0, len(paths), _IMAGES_PER_SHARD)):
        with tarfile.open(source / SHARDS / f"{shard:04}.tar", "w") as tar:
            for path in paths[first : first + _IMAGES_PER_SHARD]:
                tar.add(path, arcname=path.name)


def module(name: str):
    """One of them, imported."""
    if str(_INSTALLED) not in sys.path:
        sys.path.append(str(_INSTALLED))  # after our own packages
    return importlib.import_module(name)


def with_grain(files: list[str], batch: int):
    """Reads and decodes by grain's threads; batches stay in its CacheIterDataset."""
    grain = module("grain")

    def image(path):
        return tf.io.decode_jpeg(tf.io.read_file(path), channels=3).numpy()

    decoded = grain.MapDataset.source(files).seed(0).shuffle().map(image).batch(batch).to_iter_dataset()
    cached = grain.experimental.CacheIterDataset(decoded)
    run = iter(grain.experimental.RepeatIterDataset(cached))
    return lambda epoch: itertools.islice(run, math.ceil(len(files) / batch))


def with_webdataset(source: pathlib.Path, batch: int):
    """Reads and decodes tar files in one thread, as it does without PyTorch; samples stay in its Cached."""
    wds = module("webdataset")
    shards = sorted(str(path) for path in (source / SHARDS).glob("*.tar"))
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(shards),
        wds.tarfile_to_samples(),
        wds.map(lambda sample: tf.io.decode_jpeg(sample["jpg"], channels=3).numpy()),
        wds.Cached(),
        wds.shuffle(1024),
        wds.batched(batch, collation_fn=np.stack),
    )
    return lambda epoch: pipeline
