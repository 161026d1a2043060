"""Names and indices that somebody made to do harm write nowhere else, and are known for what they are."""

import hashlib
import io
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import local as local_level
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


def test_hostile_names(tmp_path):
    """Whatever files and classes are called, nothing is written beside the cache. The first is no class."""
    source = tmp_path / "source"
    home = tmp_path / "many" / "levels" / "down"  # what climbs from here is still found
    shm, local = home / "shm", home / "local"
    shm.mkdir(parents=True)
    for name in ("..\\..", "up\\..\\..", "-rf *", "$(touch pwned)", "a\nb", "ünï ☃"):
        (source / name).mkdir(parents=True)
        image = tf.io.encode_jpeg(tf.zeros([help_.SIDE, help_.SIDE, 3], tf.uint8)).numpy()
        (source / name / "%2e%2e%2fx\n.jpg").write_bytes(image)
    before = set(tmp_path.rglob("*"))
    cache = datacache.DataCache(
        datacache.ImageFolder(str(source)), help_.decode_image, local,
        memory_dir=str(shm), version="../../../up",
    )
    cache.warm(progress=False)
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(local) or path.is_relative_to(shm) for path in new)
    assert len(local_level.copies_in(local)) == 5


def entry(row: int, value: int):
    """Changes a number of an index's fourth record: its file, where it begins, or its length."""

    def changed(index):
        index[row, 3] = value
        return index

    return changed


HOSTILE_INDICES = {
    "a length of 2**60": entry(2, 1 << 60),
    "a length of -5": entry(2, -5),
    "a length of 15": entry(2, 15),
    "beginning at -2**40": entry(1, -(1 << 40)),
    "beginning at 2**63 - 1": entry(1, (1 << 63) - 1),
    "file 3": entry(0, 3),
    "file -1": entry(0, -1),
    "no lengths": lambda index: index[:2],
    "no records": lambda index: index[:, :0],
    "a record less": lambda index: np.delete(index, 7, axis=1),
    "a record twice": lambda index: np.repeat(index, [1] * 149 + [2], axis=1),
    "one dimension": np.ravel,
    "other numbers": lambda index: index.astype(np.float64),
    "objects": lambda index: index.astype(object),
}


def read_by_hostile_indices(pattern: str, shm: str, local: str) -> None:
    """Each is known for what it is, and written anew."""
    cache = help_.cache(pattern, shm, local, memory=0)
    [path] = pathlib.Path(local, "index").glob("*.npy")
    right = path.read_bytes()
    for name, changed in HOSTILE_INDICES.items():
        print(name, file=sys.stderr, flush=True)
        stream = io.BytesIO()
        np.save(stream, changed(np.load(io.BytesIO(right[32:]))))
        path.write_bytes(hashlib.sha256(stream.getvalue()).digest() + stream.getvalue())
        again = help_.cache(pattern, shm, local, memory=0)
        assert sorted(np.concatenate(help_.numbers_of(again.dataset(16, epochs=1)))) == list(range(150))
        assert path.read_bytes() == right
    file = cache.source.files[0]
    refused = (tf.errors.InvalidArgumentError, tf.errors.DataLossError)
    for copy in ("", cache.local.path(file.path, file.stamp)):
        for offset, length in ((-1, 100), (0, -5), (0, 1 << 60), (1 << 62, (1 << 63) - 1), (0, 12)):
            with pytest.raises(refused, match="0.tfrecord"):
                native.read(file.path, copy, file.stamp, offset, length, record=True)


def test_a_hostile_index(pattern, shm, tmp_path):
    """With the right digest; in a process of its own, which a signal would kill."""
    script = (
        "import sys\n"
        "from tests import test_datacache_hostile as hostile\n"
        "hostile.read_by_hostile_indices(*sys.argv[1:])\n"
    )
    help_.ran(script, pattern, shm, tmp_path / "local")
