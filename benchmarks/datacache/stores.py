"""Our store beside LMDB: bits that flip in what leads to the samples, filling, gathering. Prints JSON.

    python -m benchmarks.datacache.stores FLIPS EDGE...

Both stores are files on tmpfs. LMDB is used as py-lmdb's users do: a transaction for each batch that is
written, and memory-mapped values that are copied into the rows of a new batch. One thread each.
"""

import collections
import itertools
import json
import os
import pathlib
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.datacache import peers
from custom_ops.datacache_store import datacache_store as native

OURS, LMDB = "DataCache's", "LMDB"
RIGHT, ABSENT, REFUSED = "nothing is lost", "samples are absent", "the store is refused"
WRONG, KILLED = "other bytes come back", "the process is killed"
OUTCOMES = (RIGHT, ABSENT, REFUSED, WRONG, KILLED)
_PAGE = 4096
_BATCH = 256  # rows
_FILLED = 64  # samples of a transaction
_TURNS, _BYTES = 7, 1 << 28


class Ours:
    """Samples of one length, known by number, in DataCache's file."""

    def __init__(self, path: str, samples: int, size: int):
        self._path, self._spec = path, [tf.TensorSpec([size], tf.uint8)]
        if not os.path.exists(path):
            native.create(path, samples, native.payload_bytes(self._spec))
            native.set_capacity(path, samples)

    def put(self, first: int, rows: np.ndarray) -> None:
        """Stores some, from the first's number on."""
        native.put(self._path, tf.range(first, first + len(rows), dtype=tf.int64), [tf.constant(rows)])

    def get(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which are there, and their bytes."""
        found, [rows] = native.gather(self._path, tf.constant(ids), self._spec)
        return found.numpy(), rows.numpy()

    @staticmethod
    def leading(data: bytes, samples: int) -> list[range]:
        """The bytes that lead to the samples: the header, the table."""
        return [range(128), range(_PAGE, _PAGE + 8 * samples)]


class Lmdb:
    """The same in LMDB."""

    def __init__(self, path: str, samples: int, size: int):
        pages = samples * (2 + size // _PAGE) + 1000
        self._size, new = size, not os.path.exists(path)
        self._environment = peers.module("lmdb").open(
            path, subdir=False, map_size=pages * _PAGE, sync=False, lock=False, readonly=not new
        )

    def put(self, first: int, rows: np.ndarray) -> None:
        """Stores some, from the first's number on, in one transaction."""
        with self._environment.begin(write=True) as transaction:
            for i, row in enumerate(rows, first):
                transaction.put(i.to_bytes(8, "big"), row.tobytes())

    def get(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which are there, and their bytes."""
        found, batch = np.ones(len(ids), bool), np.empty([len(ids), self._size], np.uint8)
        with self._environment.begin(buffers=True) as transaction:
            for k, i in enumerate(ids.tolist()):
                value = transaction.get(i.to_bytes(8, "big"))
                if value is None:
                    found[k] = False
                else:
                    batch[k] = np.frombuffer(value, np.uint8)
        return found, batch

    @staticmethod
    def leading(data: bytes, samples: int) -> list[range]:
        """The bytes that lead to the samples: pages of the tree, and the two that say where it begins."""
        found, page = [], 0
        while page * _PAGE < len(data):
            flags, pages = struct.unpack_from("<HI", data, page * _PAGE + 10)
            if flags & 4:  # of a value
                page += pages
                continue
            found += [range(page * _PAGE, (page + 1) * _PAGE)] if flags & 11 else []
            page += 1
        return found


STORES = {OURS: Ours, LMDB: Lmdb}


def _in_child(act: Callable[[], str]) -> str:
    """What a forked child returns, REFUSED if it raises, KILLED if a signal ends it."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        outcome = REFUSED
        try:
            outcome = act()
        finally:
            os._exit(OUTCOMES.index(outcome))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return OUTCOMES[code] if code >= 0 else KILLED


def flips(kind: str, count: int) -> dict[str, int]:
    """How often each outcome follows from one flipped bit; forks, so that TensorFlow must not have run."""
    samples, size = 2000, 3000
    rows = np.random.default_rng(0).integers(0, 256, [samples, size], dtype=np.uint8)
    found: collections.Counter = collections.Counter(dict.fromkeys(OUTCOMES, 0))
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        whole, damaged = (os.path.join(directory, name) for name in ("whole", "damaged"))

        def read(path: str) -> str:
            there, got = STORES[kind](path, samples, size).get(np.arange(samples))
            if not np.array_equal(got[there], rows[there]):
                return WRONG
            return RIGHT if there.all() else ABSENT

        def fill() -> str:
            STORES[kind](whole, samples, size).put(0, rows)
            return RIGHT

        for act in (fill, lambda: read(whole)):
            if _in_child(act) != RIGHT:
                raise RuntimeError(f"{kind}'s store does not hold what was put there")
        data = pathlib.Path(whole).read_bytes()
        leading = list(itertools.chain.from_iterable(STORES[kind].leading(data, samples)))
        for _ in range(count):
            changed = bytearray(data)
            changed[chance.choice(leading)] ^= 1 << chance.randrange(8)
            pathlib.Path(damaged).write_bytes(changed)
            found[_in_child(lambda: read(damaged))] += 1
    return dict(found)


def speeds(edge: int) -> dict:
    """Seconds to fill and to gather in random order, the stores in turn; and to copy as many rows."""
    size = edge * edge * 3
    samples = _BYTES // size // _BATCH * _BATCH
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, [samples, size], dtype=np.uint8)
    order = rng.permutation(samples).reshape(-1, _BATCH)
    found: dict = {kind: {"fill": [], "gather": []} for kind in STORES} | {"copy": {"gather": []}}

    def gathered(get) -> float:
        begin = time.perf_counter()
        for ids in order:
            get(ids)
        return time.perf_counter() - begin

    for _ in range(_TURNS):
        for kind, make in STORES.items():
            with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
                store = make(os.path.join(directory, "store"), samples, size)
                begin = time.perf_counter()
                for first in range(0, samples, _FILLED):
                    store.put(first, rows[first : first + _FILLED])
                found[kind]["fill"].append(time.perf_counter() - begin)
                there, got = store.get(order[0])
                if not there.all() or not np.array_equal(got, rows[order[0]]):
                    raise RuntimeError(f"{kind}'s store does not hold what was put there")
                gathered(store.get)  # the first time, memory is mapped, and ours is checked
                found[kind]["gather"].append(gathered(store.get))
        found["copy"]["gather"].append(gathered(lambda ids: np.take(rows, ids, axis=0)))
    return {"edge": edge, "bytes": samples * size, "seconds": found}


def main() -> None:
    count, *edges = map(int, sys.argv[1:])
    results: dict = {"flips": {kind: flips(kind, count) for kind in STORES}}
    tf.config.threading.set_intra_op_parallelism_threads(1)
    results["speeds"] = [speeds(edge) for edge in edges]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
