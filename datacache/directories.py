"""Directories of our own: private, marked, leased while in use, and never cleared of what others put there.

A cache directory holds the marker file, and whoever uses it holds a shared flock() on that file, which the
kernel takes back when a process dies, even if a child that it forked lives on. Clearing needs the lock
alone. Any number of processes may claim, lease and clear at once: a marker appears as a whole and only once,
and a lock on one that has been deleted meanwhile counts for nothing.
"""

import contextlib
import fcntl
import os
import pathlib
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

MARKER = ".datacache"
_MADE = b"This directory belongs to datacache, which may delete it and the files it made here.\n"
_FOUND = b"This directory belongs to datacache, which may delete the files it made here.\n"
_ATTEMPTS = 100  # to lease a directory; one fails if another process clears it at that very moment

# From a cache directory to some of the files in it that we wrote.
Find = Callable[[pathlib.Path], Iterable[pathlib.Path]]

_opened: "weakref.WeakSet[BinaryIO]" = weakref.WeakSet()  # to be locked


def _open_lock(path: pathlib.Path) -> BinaryIO:
    file = open(path, "rb")
    _opened.add(file)
    return file


def _close_locks() -> None:
    for file in list(_opened):
        file.close()


# Nobody trains in a forked child, since TensorFlow does not survive forks: it must not hold our locks.
os.register_at_fork(after_in_child=_close_locks)


class InUse(RuntimeError):
    """Another process uses the directory."""


def claim(path: str | os.PathLike) -> pathlib.Path:
    """Makes a directory ours: mode 0700, marked. Returns it, with no symbolic link left in its path.

    One that was there, empty, stays when it is cleared.

    Raises:
      ValueError: it belongs to somebody else, it is a link that leads nowhere or is somebody else's, or it
        has foreign files in it.
      OSError: it cannot be made, e.g. on a read-only disk.
    """
    path = pathlib.Path(path)
    # In a directory that all may write to, somebody may have put a link to where we never meant to write.
    if path.is_symlink() and (not path.exists() or path.lstat().st_uid not in (0, os.geteuid())):
        raise ValueError(
            f"{path} is a symbolic link that leads nowhere or is another user's: delete it, or choose "
            "another directory for the cache."
        )
    path = path.resolve()
    # Not exist_ok, which raises FileExistsError if the directory is cleared just after mkdir() has met it.
    content = _FOUND
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
        content = _MADE
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ValueError(f"{path} is not a directory of this user: choose another for the cache.")
    marker = path / MARKER
    if not marker.exists():
        foreign = [name for name in os.listdir(path) if not _is_marker(name)]
        if foreign and not marker.exists():  # else another process has just marked it and begun to write
            raise ValueError(
                f"{path} holds files that datacache did not make, e.g. {foreign[0]!r}: give the cache "
                "an empty directory or a new one."
            )
        publish(_write_temporary(marker, content), marker)
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _is_marker(name: str) -> bool:
    return name == MARKER or name.startswith(f"{MARKER}.tmp.")


def is_ours(path: pathlib.Path) -> bool:
    """Whether a directory is marked as a cache of this user."""
    try:
        marker = (path / MARKER).lstat()
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and path.lstat().st_uid == os.geteuid()


class Lease:
    """Says that this process uses a cache directory, until it is released or the process ends.

    Claims the directory, and deletes what nobody needs, unless another process uses it.

    Args:
      path: the directory.
      leftovers: finds such files in it, e.g. those that killed processes have left half-written.

    Attributes:
      alone: whether nobody else used it.
    """

    def __init__(self, path: str | os.PathLike, leftovers: Find):
        for attempt in range(_ATTEMPTS):
            try:
                self.path = claim(path)
                self.alone = _remove_leftovers(self.path, leftovers)
                self._file = _open_lock(self.path / MARKER)
                fcntl.flock(self._file, fcntl.LOCK_SH)
                if _is_current(self._file, self.path):
                    return
                self._file.close()
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise InUse(f"{path} is cleared again and again: end the processes that do that.")

    def release(self) -> None:
        """Ends it; may be called again."""
        self._file.close()


@contextlib.contextmanager
def alone(path: pathlib.Path) -> Iterator[None]:
    """Nobody else uses the directory inside this context.

    Raises:
      InUse: somebody does.
      FileNotFoundError: it has no marker; it may just have been cleared.
    """
    while True:
        with _open_lock(path / MARKER) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"{path} is in use by a running process; end that first.") from None
            except OSError as error:
                text = f"{path} cannot be locked, as on NFS; name a directory on a local disk"
                raise OSError(error.errno, text) from None
            if _is_current(file, path):
                yield
                return


def is_in_use(path: pathlib.Path) -> bool:
    """Whether a process leases the directory; who leases it at this very moment does not find it alone."""
    try:
        with alone(path):
            return False
    except InUse:
        return True
    except FileNotFoundError:  # it has just been cleared
        return False


@contextlib.contextmanager
def one_at_a_time(path: pathlib.Path) -> Iterator[None]:
    """Waits until no other process is inside this context of a file; a directory's marker keeps it there."""
    with _open_lock(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_current(file: BinaryIO, path: pathlib.Path) -> bool:
    """Whether an open marker is still the directory's: it may have been deleted before it was locked."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (path / MARKER).lstat())
    except FileNotFoundError:
        return False


def _remove_leftovers(path: pathlib.Path, leftovers: Find) -> bool:
    # Markers' temporaries are not among them: who writes one has no lease yet.
    try:
        with alone(path):
            with contextlib.suppress(OSError):  # on a disk that is read-only now, what is whole can be read
                unlink_all(leftovers(path))
            return True
    except InUse:
        return False


def half_written(files: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Those that were not finished."""
    return [file for file in files if ".tmp." in file.name]


def unlink_all(files: Iterable[pathlib.Path]) -> int:
    """Deletes files; returns their bytes."""
    freed = 0
    for file in files:
        freed += file.lstat().st_blocks * 512
        file.unlink()
    return freed


def remove_if_empty(path: pathlib.Path) -> None:
    """Otherwise somebody else's files are in it, which we did not make."""
    with contextlib.suppress(OSError):
        path.rmdir()


def discard(path: pathlib.Path) -> None:
    """Deletes the marker of a directory where nothing else is left, and the directory if we made it.

    To be called inside `alone`.
    """
    names = os.listdir(path)
    if all(map(_is_marker, names)):
        made = (path / MARKER).read_bytes() != _FOUND
        for name in sorted(names, reverse=True):  # the marker last
            (path / name).unlink(missing_ok=True)
        if made:
            remove_if_empty(path)


def publish(temporary: pathlib.Path, path: pathlib.Path) -> None:
    """Gives a finished file its name, unless another process was faster: a rename would replace its file."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def temporary_of(path: pathlib.Path) -> pathlib.Path:
    """A name beside `path` that is nobody else's: containers that share a directory share process numbers."""
    return path.with_name(f"{path.name}.tmp.{secrets.token_hex(8)}")


def write(path: pathlib.Path, data: bytes) -> None:
    """Writes a file of mode 0600 that is either there as a whole or not at all."""
    _write_temporary(path, data).rename(path)


def _write_temporary(path: pathlib.Path, data: bytes) -> pathlib.Path:
    temporary = temporary_of(path)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(file, "wb") as stream:
            stream.write(data)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
