"""Where samples come from: the files of TFRecords, the images of a folder, or a function of a number.

A source has a length, a title, a fingerprint of its content, a name for each sample, and a `reader()`: the
graph function from a sample's number to what `decode` gets as arguments. Files are read through their local
copies, if there is a place for them (local.py). `encoded_sizes` are the bytes that samples have before they
are decoded, if they are known.
"""

import hashlib
import itertools
import json
import operator
import os
import stat
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import index, version, waiting
from datacache.local import LocalCopies

_THREADS = 32  # that list or index files at a time: the central storage answers slowly, not little
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


class SourceFile(NamedTuple):
    """A file of the central storage: its path, bytes, and time of change in nanoseconds."""

    path: str
    size: int
    changed: int

    @property
    def stamp(self) -> int:
        """63 bits that stand for the content; source_file.cc computes the same."""
        return (self.size * 0x9E3779B97F4A7C15 + self.changed) % (1 << 64) >> 1


# From a sample's number, and a function that reads its bytes, to the bytes: `Memory.kept`.
Kept = Callable[[tf.Tensor, Callable[[], tf.Tensor]], tf.Tensor]


def _not_kept(sample: tf.Tensor, read: Callable[[], tf.Tensor]) -> tf.Tensor:
    return read()


def _file_reader(files: list[SourceFile], copies: LocalCopies) -> Callable[..., tf.Tensor]:
    """The graph function that reads a part of one of the files: `native.read` with the file's number."""
    originals = tf.constant([os.fsencode(file.path) for file in files])  # which need not be UTF-8
    names = tf.constant([copies.path(file.path, file.stamp) for file in files])
    stamps = tf.constant([file.stamp for file in files], tf.int64)

    def read(file, offset, length, record):
        parts = [tf.gather(of_files, file) for of_files in (originals, names, stamps)]
        return native.read(*parts, offset, length, record=record)

    return read


def _stat(path: str) -> SourceFile:
    if "://" in path:
        status = tf.io.gfile.stat(path)
        found, is_folder = SourceFile(path, status.length, status.mtime_nsec), status.is_directory
    else:
        local = os.stat(path)  # gfile knows whole seconds only
        found, is_folder = SourceFile(path, local.st_size, local.st_mtime_ns), stat.S_ISDIR(local.st_mode)
    if is_folder:
        raise ValueError(f"{path!r} is a directory, not a file; name its files, e.g. '{path}/*.tfrecord'.")
    return found


def _ask_all(ask: Callable, paths: Iterable) -> list:
    """What the storage says of each, many at a time."""
    with futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(ask, paths))


def _fingerprint(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _contents(files: Iterable[SourceFile], *parts) -> str:
    """A fingerprint that files have wherever they are, and since when."""
    return _fingerprint([(os.path.basename(file.path), file.size) for file in files], *parts)


class TFRecords:
    """The records of TFRecord files; `decode(record)` gets a scalar string.

    Where each record begins must be known before the first batch: the first run on a machine reads all files
    once, into their local copies if there is a `local_dir`, and leaves an index for its other processes and
    later runs, unless with `memory=0` there is no place for it. Compressed files are not supported.

    Args:
      pattern: a glob pattern of any file system that TensorFlow knows, or a list of paths; the order is that
        of their names, the same for all processes.

    Raises:
      ValueError: no file matches, or one is a directory.
      FileNotFoundError, tf.errors.NotFoundError: a listed one is not there (as a mounted path, as a URL).
      tf.errors.DataLossError: when the data is first opened, one is no TFRecord file.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "train-0")
      >>> with tf.io.TFRecordWriter(path) as file:
      ...     file.write(b"a record")
      >>> TFRecords(path).paths == [path]
      True
    """

    def __init__(self, pattern: str | os.PathLike | list[str]):
        with waiting.naming(f"the list of {str(pattern)[:200]}"):
            if isinstance(pattern, str | os.PathLike):
                pattern = os.fspath(pattern)
                # Not of the absolute pattern: the working directory's name may have a bracket.
                self.paths = sorted(map(_absolute, tf.io.gfile.glob(pattern)))
            else:
                self.paths = sorted(_absolute(os.fspath(path)) for path in pattern)
            if not self.paths:
                raise ValueError(f"TFRecords: no file matches {pattern!r}; is the storage mounted?")
            self.files = _ask_all(_stat, self.paths)
        several = f"{self.paths[0]} and {len(self.paths) - 1} more"
        self.title = f"TFRecords {pattern if isinstance(pattern, str) else several}"
        self.fingerprint = _fingerprint("TFRecords", [tuple(file) for file in self.files])
        self.contents = _contents(self.files)
        self._copies = LocalCopies(None)
        self._index = None

    def open(self, copies: LocalCopies, memory_dir: str | None = None) -> None:
        """Reads where the records are, from an index that is kept (index.place), or from the files."""
        self._copies = copies
        with index.place(copies, memory_dir, self.fingerprint) as path:
            saved = path and index.load(path, [file.size for file in self.files])
            if saved is not None:
                self._index = saved
                return
            if self._index is None:
                self._index = self._read_index()
            if path is not None:
                index.save(path, self._index)

    def _read_index(self) -> np.ndarray:
        """Of each record, its file, first byte and length; reads all files, into their copies."""

        def offsets(file: SourceFile) -> np.ndarray:
            copy = self._copies.path(file.path, file.stamp)
            return native.record_index(os.fsencode(file.path), copy, file.stamp).numpy()

        found = _ask_all(offsets, self.files)
        numbers = np.concatenate([np.full(len(one) - 1, i) for i, one in enumerate(found)])
        begins = np.concatenate([one[:-1] for one in found])
        ends = np.concatenate([one[1:] for one in found])
        return np.stack([numbers, begins, ends - begins]).astype(np.int64)

    def _records(self) -> np.ndarray:
        """Of each record, its file, first byte and length; asked for before `open`, it opens."""
        if self._index is None:
            self.open(self._copies)
        return self._index

    def __len__(self) -> int:
        return self._records().shape[1]

    def name_of(self, sample: int) -> str:
        """For messages."""
        file, begin, _ = self._records()[:, sample]
        return f"the record at byte {begin} of {self.paths[file]}"

    @property
    def encoded_sizes(self) -> np.ndarray:
        """Of each record, with its framing."""
        return self._records()[2]

    def reader(self) -> Callable[..., tuple[tf.Tensor, ...]]:
        """The graph function from a sample's number, and perhaps a `Kept`, to what `decode` gets."""
        parts = tf.constant(self._records())
        read_part = _file_reader(self.files, self._copies)

        def read(sample: tf.Tensor, kept: Kept = _not_kept):
            part = tf.unstack(tf.gather(parts, sample, axis=1))
            return (kept(sample, lambda: read_part(*part, record=True)),)

        return read


class ImageFolder:
    """Images in one folder per class; `decode(image, label)` gets the file's bytes and an int64.

    Labels number the classes in the order of their names (`class_names`). Folders whose name begins with a
    dot are none.

    Args:
      path: the folder of the folders; any file system that TensorFlow knows.

    Raises:
      ValueError: there are no folders with images in it.
      tf.errors.NotFoundError: it is not there.

    Example:
      >>> import os, tempfile
      >>> path = tempfile.mkdtemp()
      >>> for name in ("cats", "dogs"):
      ...     os.mkdir(os.path.join(path, name))
      ...     image = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8))
      ...     tf.io.write_file(os.path.join(path, name, "1.jpg"), image)
      >>> ImageFolder(path).class_names
      ['cats', 'dogs']
    """

    def __init__(self, path: str):
        self.files, labels = [], []
        with waiting.naming(f"the list of {path}"):
            root = _absolute(os.fspath(path))
            names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(root))
            names = [name for name in names if not name.startswith(".")]
            paths = [os.path.join(root, name) for name in names]
            are_folders = _ask_all(tf.io.gfile.isdir, paths)
            self.class_names = list(itertools.compress(names, are_folders))
            for label, found in enumerate(_list_folders(list(itertools.compress(paths, are_folders)))):
                self.files += found
                labels += [label] * len(found)
        if not self.files:
            raise ValueError(
                f"ImageFolder: {path!r} has no folders with images ({', '.join(IMAGES)}); each class "
                "needs one."
            )
        self._labels = labels
        self.title = f"ImageFolder {path}"
        self.fingerprint = _fingerprint("ImageFolder", [tuple(file) for file in self.files], labels)
        self.contents = _contents(self.files, labels, self.class_names)
        self._copies = LocalCopies(None)

    def open(self, copies: LocalCopies, memory_dir: str | None = None) -> None:
        """From now on reads through these copies."""
        self._copies = copies

    def __len__(self) -> int:
        return len(self.files)

    def name_of(self, sample: int) -> str:
        """For messages."""
        return self.files[sample].path

    @property
    def encoded_sizes(self) -> np.ndarray:
        """Of each image's file."""
        return np.array([file.size for file in self.files])

    def reader(self) -> Callable[..., tuple[tf.Tensor, ...]]:
        """The graph function from a sample's number, and perhaps a `Kept`, to what `decode` gets."""
        sizes = tf.constant([file.size for file in self.files], tf.int64)
        labels = tf.constant(self._labels, tf.int64)
        read_part = _file_reader(self.files, self._copies)

        def read(sample: tf.Tensor, kept: Kept = _not_kept):
            whole = (tf.constant(0, tf.int64), tf.gather(sizes, sample))
            image = kept(sample, lambda: read_part(sample, *whole, record=False))
            return image, tf.gather(labels, sample)

        return read


def _absolute(path: str) -> str:
    """What names the same file from every working directory: stores and copies are found by it."""
    return path if "://" in path else os.path.abspath(path)


def _list_folders(folders: list[str]) -> list[list[SourceFile]]:
    """The images of each of some folders of one file system, in the order of their names."""
    if not any("://" in folder for folder in folders):
        return _ask_all(_list_mounted, folders)
    paths = _ask_all(_list_remote, folders)
    found = iter(_ask_all(_stat, itertools.chain.from_iterable(paths)))
    return [list(itertools.islice(found, len(of_folder))) for of_folder in paths]


def _list_remote(folder: str) -> list[str]:
    names = sorted(name for name in tf.io.gfile.listdir(folder) if name.lower().endswith(IMAGES))
    return [os.path.join(folder, name) for name in names]


def _list_mounted(folder: str) -> list[SourceFile]:
    with os.scandir(folder) as entries:  # a call per folder less than gfile, and no parsing of URLs
        images = [e for e in entries if e.name.lower().endswith(IMAGES) and not e.is_dir()]
        found = [
            SourceFile(entry.path, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in images
        ]
    return sorted(found)


class Samples:
    """Samples by number; `decode` gets what `read_fn(i)` returns, i an int64 scalar tensor.

    What `read_fn` reads has no local copies. If it is not TensorFlow code, wrap it in
    `tf.numpy_function`; the dataset's iterators can then not be saved (resume by `start` all the same).

    Args:
      n: number of samples.
      read_fn: the same result for the same number in each run.
      fingerprint: a string that changes when the samples do. "" (default): told from `read_fn`'s code and
        what it refers to (version.py), which does not notice when files that it reads change.

    Raises:
      TypeError: `n` is no whole number.
      ValueError: `n` is less than 1; or a `fingerprint` is needed, since `read_fn` refers to what has no
        version.

    Example:
      >>> len(Samples(60_000, lambda i: tf.random.stateless_uniform([28, 28], [0, i])))
      60000
    """

    encoded_sizes = None

    def __init__(self, n: int, read_fn: Callable, fingerprint: str = ""):
        n = operator.index(n)
        if n < 1:
            raise ValueError(f"Samples: n={n}: must be at least 1.")
        self._n, self._read = n, read_fn
        self.title = f"Samples {getattr(read_fn, '__name__', '')}"
        self.fingerprint = _fingerprint("Samples", n, fingerprint or version.of(read_fn, "fingerprint"))
        self.contents = ""  # what a function reads is not known

    def open(self, copies: LocalCopies, memory_dir: str | None = None) -> None:
        """There is nothing to copy."""

    def __len__(self) -> int:
        return self._n

    def name_of(self, sample: int) -> str:
        """For messages."""
        return f"sample {sample}"

    def reader(self) -> Callable[..., tuple[tf.Tensor, ...]]:
        """The graph function from a sample's number, and perhaps a `Kept`, to what `decode` gets."""

        def read(sample: tf.Tensor, kept: Kept = _not_kept):
            result = self._read(sample)
            return tuple(result) if isinstance(result, tuple | list) else (result,)

        return read
