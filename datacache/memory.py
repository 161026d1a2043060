"""Level 2: decoded samples in shared memory, one copy per machine whatever the number of processes.

    <memory_dir>/datacache-<uid>/.datacache            marker
    <memory_dir>/datacache-<uid>/<identity>/.datacache marker and lease
    <memory_dir>/datacache-<uid>/<identity>/store      the samples (custom_ops/datacache_store/store.h)
    <memory_dir>/datacache-<uid>/<identity>/about.json what `tss cache ls` shows; nothing relies on it

The identity is a hash of the source's fingerprint, of the decode version and of the samples' components:
another content or decode version is another store. It outlives the process; the next run begins warm.
"""

import hashlib
import json
import logging
import os
import pathlib
import time
from collections.abc import Sequence

import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import budget, directories

FORMAT = 1
_log = logging.getLogger("datacache")


def root_of(memory_dir: str) -> pathlib.Path:
    """Where a user's stores are."""
    return pathlib.Path(memory_dir) / f"datacache-{os.geteuid()}"


def identity(source: str, version: str, samples: int, specs: Sequence[tf.TensorSpec]) -> str:
    """The name of the store of a source's fingerprint and a decode version."""
    components = [(spec.dtype.name, spec.shape.as_list()) for spec in specs]
    parts = json.dumps([FORMAT, source, version, samples, components])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


class Memory:
    """The store of one identity, opened or made.

    Args:
      memory_dir: a directory on tmpfs.
      name: the identity.
      samples: N.
      specs: components of a sample.
      memory: the user's limit, "auto" for none.
      about: for `tss cache ls`.
    """

    def __init__(
        self,
        memory_dir: str,
        name: str,
        samples: int,
        specs: Sequence[tf.TensorSpec],
        memory: int | str,
        about: dict,
    ):
        self.specs, self.samples = list(specs), samples
        self.sample_bytes = native.payload_bytes(specs) + 64  # a slot's header
        self.limit = budget.Limit(0, "nothing")
        self.path = None
        if budget.parse(memory) == 0:
            self.limit = budget.Limit(0, "memory=0")
            return
        try:
            self._lease = directories.Lease(directories.claim(root_of(memory_dir)) / name, _written)
            self._open(self._lease.path, memory, about)
        except (OSError, tf.errors.ResourceExhaustedError) as error:
            message = getattr(error, "message", error)
            _log.warning(
                "datacache: no samples are kept in memory: %s. All are read and decoded in each epoch; "
                "memory_dir= names another place.", message,
            )
            self.path = None

    def _open(self, directory: pathlib.Path, memory: int | str, about: dict) -> None:
        store = directory / "store"
        for attempt in range(2):
            if not store.exists():
                _create(store, self.samples, native.payload_bytes(self.specs))
                written = json.dumps({**about, "created": time.time(), "samples": self.samples})
                directories.write(directory / "about.json", written.encode())
            try:
                held = native.store_stats(str(store)).stored
                break
            except tf.errors.FailedPreconditionError as error:
                if attempt:
                    raise
                _log.warning("datacache: %s It is made anew.", error.message.partition(";")[0] + ".")
                store.unlink(missing_ok=True)
        self.path = str(store)
        found = budget.limits(memory, str(directory), held * self.sample_bytes)
        self.limit = budget.least(found)
        native.set_capacity(self.path, self.limit.bytes // self.sample_bytes)

    @property
    def capacity(self) -> int:
        """How many samples may be kept; 0 without a store."""
        return native.store_stats(self.path).capacity if self.path else 0

    def forecast(self, directory: str) -> str:
        """What will fit."""
        return budget.forecast(self.samples, self.sample_bytes, self.limit, directory)


def _create(store: pathlib.Path, samples: int, payload_bytes: int) -> None:
    """Makes a store that is there as a whole or not at all; another process may be faster."""
    temporary = directories.temporary_of(store)
    native.create(str(temporary), samples, payload_bytes)
    directories.publish(temporary, store)


def _written(directory: pathlib.Path) -> list[pathlib.Path]:
    """What we wrote in a store's directory, half-written files too."""
    ours = ("store", "about.json")
    return [path for path in directory.iterdir() if path.name.partition(".tmp.")[0] in ours]


def stores_in(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories of a user's stores."""
    if not directories.is_ours(root):
        return []
    found = (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(path for path in found if directories.is_ours(path))


def clear(directory: pathlib.Path) -> int:
    """Deletes a store, and its directory if nothing else is in it; returns bytes.

    Raises:
      directories.InUse: a running process has it open.
    """
    with directories.alone(directory):
        freed = directories.unlink_all(_written(directory))
        directories.discard(directory)
    return freed
