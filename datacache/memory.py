"""Level 2: decoded samples in shared memory, one copy per machine whatever the number of processes.

    <memory_dir>/datacache-<uid>/.datacache             marker; locked by who opens a store
    <memory_dir>/datacache-<uid>/<identity>/.datacache  marker and lease
    <memory_dir>/datacache-<uid>/<identity>/store       the samples (custom_ops/datacache_store/store.h)
    <memory_dir>/datacache-<uid>/<identity>/encoded     those that did not fit, before they were decoded
    <memory_dir>/datacache-<uid>/<identity>/limit       bytes that the two may take: samples, tables
    <memory_dir>/datacache-<uid>/<identity>/about.json  what `tss cache ls` shows; nothing relies on it
    <memory_dir>/datacache-<uid>/index-<hex>/index.npy  where records begin (index.py)

The identity is a hash of the source's fingerprint, of the decode version and of the samples' components:
another content or decode version is another store. It outlives the process; the next run begins warm.

What a store in use may still come to take is not free for another: the first that is opened has it. While
several processes use one store, its limit is the least of theirs.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import budget, directories, waiting

FORMAT = 3  # of files, and of the order that decides which samples a node keeps
INDEX = "index-"  # begins the names of directories that hold an index and no store
_FILES = ("store", "encoded", "limit", "about.json", "index.npy")
_PAGE = 4096
_ADDRESSES = 64 << 40  # bytes, of the 128 TB that a process has
_log = logging.getLogger("datacache")

_in_use: "weakref.WeakSet[Memory]" = weakref.WeakSet()  # of this process


def root_of(memory_dir: str) -> pathlib.Path:
    """Where a user's stores are."""
    return pathlib.Path(memory_dir) / f"datacache-{os.geteuid()}"


def identity(source: str, version: str, samples: int, specs: Sequence[tf.TensorSpec]) -> str:
    """The name of the store of a source's fingerprint and a decode version."""
    components = [(spec.dtype.name, spec.shape.as_list()) for spec in specs]
    parts = json.dumps([FORMAT, source, version, samples, components])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _most_encoded(sizes: np.ndarray) -> int:
    """Bytes of the largest sample that is kept encoded: larger ones are read in each epoch.

    How many are kept follows from their mean: a few that are many times larger would take more than that, and
    slots of their size more addresses than there are.
    """
    return min(int(np.max(sizes)), 64 * (1 + int(np.mean(sizes))), _ADDRESSES // len(sizes))


class Memory:
    """The store of one identity, opened or made.

    Args:
      memory_dir: a directory on tmpfs.
      name: the identity.
      samples: N.
      specs: components of a sample.
      memory: the user's limit, "auto" for none.
      about: for `tss cache ls`.
      encoded_sizes: bytes of each sample before it is decoded, if what does not fit decoded is to be kept
        so; None otherwise.
      nodes: among which the samples are divided.

    Attributes:
      name: the cache's, by which its waits are counted.
      path: the store; None where there is none.
      encoded_path: that of encoded samples; None where there is none.
      rooms: how many samples may be kept.
      share: of the samples, one node's.
    """

    def __init__(
        self,
        memory_dir: str,
        name: str,
        samples: int,
        specs: Sequence[tf.TensorSpec],
        memory: int | str,
        about: dict,
        encoded_sizes: np.ndarray | None = None,
        nodes: int = 1,
    ):
        self.name, self._dir = name, memory_dir
        self.specs, self.samples = list(specs), samples
        self.share = -(-samples // nodes)
        self.sample_bytes = native.payload_bytes(specs) + 64  # a slot's header
        self._encoded_sizes = encoded_sizes
        self._most_encoded = 0 if encoded_sizes is None else _most_encoded(encoded_sizes)
        self.limit, self.rooms = budget.Limit(0, "nothing"), budget.Rooms(0, 0)
        self.path = self.encoded_path = None
        _in_use.add(self)
        if budget.parse(memory) == 0:
            self.limit = budget.Limit(0, "memory=0")
            return
        try:
            root = directories.claim(root_of(memory_dir))
            with unopened(root):
                self._lease = directories.Lease(root / name, self._leftovers)
                try:
                    self._open(root, memory, about)
                except BaseException:
                    self._lease.release()  # others are to have what this process does without
                    raise
        except (OSError, tf.errors.ResourceExhaustedError) as error:
            message = getattr(error, "message", error)
            _log.warning(
                "datacache: no samples are kept in memory: %s. All are read and decoded in each epoch; "
                "memory_dir= names another place.", message,
            )
            self.path = self.encoded_path = None

    def _open(self, root: pathlib.Path, memory: int | str, about: dict) -> None:
        directory, encoded = self._lease.path, self._encoded_sizes
        # A notebook's former store, which may have been cleared, takes memory as long as it is open.
        used = [path for memory in _in_use for path in (memory.path, memory.encoded_path) if path]
        native.keep_open([*used, str(directory / "store"), str(directory / "encoded")])
        if not (directory / "about.json").exists():
            written = json.dumps({**about, "created": time.time(), "samples": self.samples})
            directories.write(directory / "about.json", written.encode())
        others = None if self._lease.alone else _given(directory)
        if others is None:
            _give(directory, _Given(0, 0))  # what the files take must be gone from the free space
        path = self._store(directory / "store", native.payload_bytes(self.specs))
        kept = [] if encoded is None else encoded[encoded <= self._most_encoded]
        # A slot ends anywhere in a page that the next one begins in.
        encoded_bytes = int(np.mean(kept)) + 64 + _PAGE if len(kept) else None

        def divide():
            tables = _pages(_PAGE + 8 * self.samples) * len(stores(directory))
            held = max(_taken(directory) - tables, 0)
            found = budget.limits(memory, str(directory), held, promised(root, directory))
            if others is not None:
                who = "what another DataCache in use, maybe of this process, gives the same store"
                found.append(budget.Limit(others.samples, who))
            self.limit = budget.least(found)
            self.rooms = budget.rooms(
                self.limit.bytes, self.samples, self.share, self.sample_bytes, encoded_bytes
            )
            return tables

        tables, of_others = divide(), directory / "encoded"
        if self._lease.alone and not self.rooms.encoded and of_others.exists():
            of_others.unlink()  # a run with less memory has left it
            tables = divide()
        if self.rooms.encoded:
            self._open_encoded(of_others)
        native.set_capacity(path, self.rooms.decoded)
        bytes_given = self.rooms.decoded * self.sample_bytes + self.rooms.encoded * (encoded_bytes or 0)
        _give(directory, _Given(bytes_given, tables))
        self.path = path

    def _leftovers(self, directory: pathlib.Path) -> list[pathlib.Path]:
        """What is half-written, and encoded samples, where copies on a local disk are these."""
        encoded = [directory / "encoded"] if self._encoded_sizes is None else []
        return directories.half_written(_written(directory)) + [path for path in encoded if path.exists()]

    def _open_encoded(self, path: pathlib.Path) -> None:
        """Without room for its table, decoded samples are kept alone: that store may be full of them."""
        try:
            self.encoded_path = self._store(path, self._most_encoded)
            native.set_capacity(self.encoded_path, self.rooms.encoded)
        except tf.errors.ResourceExhaustedError as error:
            _log.warning(
                "datacache: no samples are kept encoded: %s. What does not fit decoded is read each time.",
                error.message,
            )
            self.rooms = budget.rooms(self.limit.bytes, self.samples, self.share, self.sample_bytes, None)
            self.encoded_path = None

    def _store(self, path: pathlib.Path, payload_bytes: int) -> str:
        """The path of a store that is there, or has been made, and is sound."""
        if path.exists():
            fault = self._fault_of(path, payload_bytes)
            if not fault:
                return str(path)
            _log.warning("datacache: %s. It is made anew.", fault)
            path.unlink(missing_ok=True)
        temporary = directories.temporary_of(path)
        native.create(str(temporary), self.samples, payload_bytes)
        directories.publish(temporary, path)
        return str(path)

    def _fault_of(self, path: pathlib.Path, payload_bytes: int) -> str:
        """What is wrong with a store that is there; "" if nothing is.

        What this process lacks is no fault of the store, which others may use: it is raised.
        """
        try:
            stats = native.store_stats(str(path))
            native.set_capacity(str(path), stats.capacity)
        except tf.errors.FailedPreconditionError as error:
            return error.message.partition(";")[0]
        if (stats.samples, stats.payload_bytes) == (self.samples, payload_bytes):
            return ""
        return (
            f"{path} is for {stats.samples} samples of {stats.payload_bytes} bytes, not for {self.samples} "
            f"of {payload_bytes}"
        )

    def kept(self, sample: tf.Tensor, read: Callable[[], tf.Tensor]) -> tf.Tensor:
        """A sample's bytes, from memory or by `read`, in the graph; a source's `Kept`."""
        if self.encoded_path is None:
            return read()
        found, data = native.fetch(self.encoded_path, sample)
        return tf.cond(
            found, lambda: data, lambda: native.keep(self.encoded_path, sample, read(), self.path)
        )

    def forecast(self) -> str:
        """What will fit."""
        return budget.forecast(self.share, self.sample_bytes, self.limit, self.rooms, self._dir)


class _Given(NamedTuple):
    """Bytes that a store may take."""

    samples: int
    tables: int


def _given(directory: pathlib.Path) -> _Given | None:
    """What a store was given; None where that is unknown."""
    try:
        samples, tables = map(int, (directory / "limit").read_text().split())
    except (OSError, ValueError):
        return None
    return _Given(samples, tables)


def _give(directory: pathlib.Path, given: _Given) -> None:
    """Writes it in place: there may be no room for another file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(directory / "limit", flags, 0o600)
    with open(file, "wb") as stream:
        stream.write(b"%20d %20d\n" % given)


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _taken(directory: pathlib.Path) -> int:
    """Bytes of memory that a store takes."""
    found = 0
    for path in stores(directory):
        with contextlib.suppress(FileNotFoundError):
            found += path.lstat().st_blocks * 512
    return found


@contextlib.contextmanager
def unopened(root: pathlib.Path) -> Iterator[None]:
    """Nobody opens a store inside this context, who would take who looks at it for another user of it."""
    with contextlib.ExitStack() as stack:
        if directories.is_ours(root):
            with waiting.naming(f"another process that opens a store in {root}"):
                stack.enter_context(directories.one_at_a_time(root / directories.MARKER))
        yield


def promised(root: pathlib.Path, own: pathlib.Path | None = None) -> int:
    """Bytes that stores in use, but for one's own, may still come to take; to be called inside `unopened`."""
    found = 0
    for directory in stores_in(root):
        given = _given(directory)
        if directory != own and given and directories.is_in_use(directory):
            found += max(_pages(given.samples) + given.tables - _taken(directory), 0)
    return found


def _written(directory: pathlib.Path) -> list[pathlib.Path]:
    """What we wrote in a store's directory, half-written files too."""
    return [path for path in directory.iterdir() if path.name.partition(".tmp.")[0] in _FILES]


def stores(directory: pathlib.Path) -> list[pathlib.Path]:
    """The files of a store's directory that hold samples."""
    return [path for path in (directory / "store", directory / "encoded") if path.exists()]


def stores_in(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories of a user's stores."""
    return [path for path in _all_in(root) if not path.name.startswith(INDEX)]


def indices_in(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories of indices of records."""
    return [path for path in _all_in(root) if path.name.startswith(INDEX)]


def _all_in(root: pathlib.Path) -> list[pathlib.Path]:
    if not directories.is_ours(root):
        return []
    found = (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(path for path in found if directories.is_ours(path))


def clear(directory: pathlib.Path) -> int:
    """Deletes a store or an index, and its directory if nothing else is in it; returns bytes.

    Raises:
      directories.InUse: a running process has it open.
    """
    with directories.alone(directory):
        freed = directories.unlink_all(_written(directory))
        directories.discard(directory)
    return freed
