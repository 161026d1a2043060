"""Level 1: copies of the source's files on a local disk, kept for later runs and shared by concurrent ones.

    <local_dir>/.datacache                   marker and lease
    <local_dir>/files/<2 hex>/<hex>-<stamp>  a file's bytes and a footer (copy.h): crc32c, length, stamp
    <local_dir>/index/<hex>.npy[.tmp.lock]   where the records of TFRecord files begin (index.py)

A copy's name is a hash of its original's path, and the stamp of the original's content: whatever a source's
files are called, nothing is written elsewhere, and runs that listed a source before and after it changed do
not disturb each other. There is no list of copies: each tells by itself whether it is whole. Copies of which
there is a newer one are deleted when a run begins and no other uses the directory.
"""

import collections
import hashlib
import logging
import os
import pathlib
import re

from datacache import directories

_log = logging.getLogger("datacache")
# Of copies, of indices, and of both while they are written.
_NAMES = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{16}|\.npy)?(\.tmp\..+)?")


class LocalCopies:
    """The copies in a directory.

    Args:
      directory: made if missing; None for no copies. Where it cannot be made or written, a warning says
        so, and files are read from the central storage.
    """

    def __init__(self, directory: str | os.PathLike | None):
        self.root = None
        if directory is None:
            return
        try:
            self._lease = directories.Lease(directory, _leftovers)
            for folder in _folders(self._lease.path):
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.is_symlink():
                    raise ValueError(f"{folder} is a symbolic link, which datacache did not make: delete it.")
            self.root = self._lease.path
        except OSError as error:
            _log.warning(
                "datacache: no local copies: %s. Files are read from the central storage each time they "
                "are not in memory.", error,
            )

    def path(self, original: str, stamp: int) -> str:
        """Where the copy of a file of this content is, or would be; empty where there are no copies."""
        if self.root is None:
            return ""
        name = hashlib.sha256(os.fsencode(original)).hexdigest()
        return str(self.root / "files" / name[:2] / f"{name}-{stamp:016x}")


def _folders(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories that we make in a local directory."""
    files = root / "files"
    return [root / "index", files, *(files / f"{i:02x}" for i in range(256))]


def _folders_in(root: pathlib.Path) -> list[pathlib.Path]:
    """Those of them that are there; none that a link leads to."""
    if (root / "files").is_symlink():
        return []
    return [path for path in _folders(root) if path.is_dir() and not path.is_symlink()]


def _written(root: pathlib.Path) -> list[pathlib.Path]:
    """What we wrote in a local directory, half-written files too."""
    found = [path for folder in _folders_in(root) for path in folder.iterdir()]
    return [path for path in found if _NAMES.fullmatch(path.name) and not path.is_dir()]


def copies_in(root: pathlib.Path) -> list[pathlib.Path]:
    """All copies of a local directory."""
    return list(filter(_is_copy, _written(root)))


def _is_copy(written: pathlib.Path) -> bool:
    return "." not in written.name


def _leftovers(root: pathlib.Path) -> list[pathlib.Path]:
    """What nobody needs when nobody uses the directory: half-written files, and copies of old contents."""
    written, copies = _written(root), collections.defaultdict(list)
    for path in filter(_is_copy, written):
        copies[path.name[:64]].append(path)
    outdated = []
    for several in (same for same in copies.values() if len(same) > 1):
        outdated += sorted(several, key=lambda path: path.lstat().st_mtime_ns)[:-1]
    return directories.half_written(written) + outdated


def clear(root: pathlib.Path) -> int:
    """Deletes what we made in a local directory, and it if nothing else is in it; returns bytes.

    Raises:
      directories.InUse: a running process uses it.
    """
    with directories.alone(root):
        freed = directories.unlink_all(_written(root))
        for folder in reversed(_folders_in(root)):
            directories.remove_if_empty(folder)
        directories.discard(root)
    return freed
