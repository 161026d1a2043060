"""Directories of our own: private, marked, leased while in use, and never cleared of what others put there.

A cache directory holds the marker file, and whoever uses it holds a shared flock() on that file, which the
kernel takes back when a process dies. Clearing needs the lock alone.
"""

import contextlib
import fcntl
import os
import pathlib
import stat
from collections.abc import Iterator

MARKER = ".datacache"
_CONTENT = b"This directory belongs to datacache, which may delete the files it made here.\n"


class InUse(RuntimeError):
    """Another process uses the directory."""


def claim(path: str | os.PathLike) -> pathlib.Path:
    """Makes a directory ours: mode 0700, marked. Returns it, with no symbolic link left in its path.

    Raises:
      ValueError: it belongs to somebody else, others may write to it, or it has foreign files in it.
      OSError: it cannot be made, e.g. on a read-only disk.
    """
    path = pathlib.Path(path).resolve()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ValueError(f"{path} is not a directory of this user: choose another for the cache.")
    marker = path / MARKER
    if not marker.exists():
        foreign = [name for name in os.listdir(path) if not name.startswith(MARKER)]
        if foreign:
            raise ValueError(
                f"{path} holds files that datacache did not make, e.g. {foreign[0]!r}: give the cache "
                "an empty directory or a new one."
            )
        write(marker, _CONTENT)
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def is_ours(path: pathlib.Path) -> bool:
    """Whether a directory is marked as a cache of this user."""
    try:
        marker = (path / MARKER).lstat()
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and path.lstat().st_uid == os.geteuid()


class Lease:
    """Says that this process uses a cache directory, until it is released or the process ends."""

    def __init__(self, path: pathlib.Path):
        self._file = open(path / MARKER, "rb")  # noqa: SIM115
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Ends it; may be called again."""
        self._file.close()


@contextlib.contextmanager
def alone(path: pathlib.Path) -> Iterator[None]:
    """Nobody else uses the directory inside this context; raises InUse where somebody does."""
    with open(path / MARKER, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{path} is in use by a running process; end that first.") from None
        yield


def remove_leftovers(path: pathlib.Path, *patterns: str) -> None:
    """Deletes half-written files of processes that were killed, unless somebody may be writing them."""
    with contextlib.suppress(InUse), alone(path):
        for pattern in patterns:
            for leftover in path.glob(pattern):
                leftover.unlink()


def write(path: pathlib.Path, data: bytes) -> None:
    """Writes a file of mode 0600 that is either there as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(file, "wb") as stream:
            stream.write(data)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
