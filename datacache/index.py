"""Where the records of TFRecord files begin: found once, for later runs and the machine's other processes.

    <local_dir>/index/<hex>.npy                         where there are local copies; beside it a lock
    <memory_dir>/datacache-<uid>/index-<hex>/index.npy  where there are none

A digest, and an array as NumPy writes it. Anybody can write the digest of anything: an index is believed only
if it divides all bytes of the files into records.
"""

import contextlib
import hashlib
import io
import logging
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from datacache import directories, memory, waiting
from datacache.local import LocalCopies

_FRAMING = 16  # bytes of a record of TFRecord files without data
_log = logging.getLogger("datacache")


@contextlib.contextmanager
def place(copies: LocalCopies, memory_dir: str | None, fingerprint: str) -> Iterator[pathlib.Path | None]:
    """The file for a source's index; waits for another process that is making it.

    Args:
      copies: where it is if there are copies.
      memory_dir: where it is otherwise; None for nowhere.
      fingerprint: the source's.

    Returns:
      A context with the path; None where no index can be kept.
    """
    with contextlib.ExitStack() as stack:

        def wait_for(file):
            with waiting.naming("an index of records, which another process may be making"):
                stack.enter_context(directories.one_at_a_time(file))

        path = None
        if copies.root is not None:
            path = copies.root / "index" / f"{fingerprint}.npy"
            with contextlib.suppress(OSError):  # on a disk that is read-only now, where none can be made
                lock = path.with_name(f"{path.name}.tmp.lock")  # goes with what was not finished
                lock.touch(mode=0o600)
                wait_for(lock)
        elif memory_dir is not None:
            with contextlib.suppress(OSError):  # of which the store, in the same directory, will warn
                root = directories.claim(memory.root_of(memory_dir))
                directory = directories.claim(root / f"{memory.INDEX}{fingerprint[:32]}")
                wait_for(directory / directories.MARKER)
                directories.unlink_all(directory.glob("index.npy.tmp.*"))  # of processes that were killed
                path = directory / "index.npy"
        yield path


def load(path: pathlib.Path, sizes: Sequence[int]) -> np.ndarray | None:
    """The index of files of these sizes, int64 [3, R]; None where there is none, or it cannot be theirs."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    try:
        index = np.lib.format.read_array(io.BytesIO(data[32:]), allow_pickle=False)
    except Exception:  # of many kinds, as the bytes may be any
        return None
    return index if _is_index(index, np.array(sizes, np.int64)) else None


def save(path: pathlib.Path, index: np.ndarray) -> None:
    """Keeps it, if that is possible."""
    stream = io.BytesIO()
    np.save(stream, index, allow_pickle=False)
    data = stream.getvalue()
    try:
        directories.write(path, hashlib.sha256(data).digest() + data)
    except OSError as error:
        _log.warning("datacache: the index of records is not kept: %s", error)


def _is_index(index: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether it divides all bytes of files of these sizes into records: file, first byte, length of each."""
    if index.dtype != np.int64 or index.ndim != 2 or len(index) != 3:
        return False
    files, begins, lengths = index
    if not ((files >= 0) & (files < len(sizes))).all():
        return False
    room = sizes[files] - _FRAMING  # no sum may overflow
    if not ((begins >= 0) & (begins <= room)).all():
        return False
    if not ((lengths >= _FRAMING) & (lengths <= sizes[files] - begins)).all():
        return False
    begins = begins + (np.cumsum(sizes) - sizes)[files]  # as if the files were one
    return np.array_equal(np.append(begins, sizes.sum()), np.append(0, begins + lengths))
