"""Memory and disks that are full, small, read-only, or asked for by several."""

import pathlib
import re
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import directories
from datacache import local as local_level
from datacache import memory as memory_level
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


# They wait for each other before they copy, and again before they fill.
AT_ONCE = """
import json, pathlib, sys, time
import numpy as np
from tests import datacache_help as help_
pattern, shm, local, own, other, version = sys.argv[1:]
def wait_for_the_other(name):
    pathlib.Path(shm, own + name).touch()
    while not pathlib.Path(shm, other + name).exists():
        time.sleep(0.001)
wait_for_the_other(" copies")
cache = help_.cache(pattern, shm, local, version=version)
batches = iter(cache.dataset(16, seed=int(own), epochs=1))
wait_for_the_other(" fills")
seen = np.concatenate(help_.numbers_of(batches))
assert sorted(seen.tolist()) == list(range(3000))
print(json.dumps(cache.stats()))
"""


@pytest.mark.parametrize("versions", [("1", "1"), ("1", "2")], ids=["one store", "two"])
def test_two_runs_fill_one_cache_at_once(shm, tmp_path, versions):
    pattern = help_.records(tmp_path / "source", per_file=1000)
    place = [pattern, shm, tmp_path / "local"]
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, *map(str, place), *names, version],
            stdout=pipe, stderr=pipe, env=help_.ENVIRONMENT, text=True,
        )
        for names, version in zip(("01", "10"), versions, strict=True)
    ]
    stats = [help_.finished(run)[0] for run in runs]
    assert [s["stored"] for s in stats] == [3000, 3000]
    assert sum(s["copies"] for s in stats) == 3  # each file was read by one of them
    assert min(s["memory_misses"] for s in stats) > 0  # each has filled a part
    for version in versions:
        cache = help_.cache(*place, version=version)
        assert cache.stats()["stored"] == 3000 and native.verify(cache.memory.path) == 0


@pytest.mark.parametrize("size", ["40k", "4k"])
def test_full_shared_memory(pattern, shm, size):
    """With room for a part of the samples, and with not even room for the table."""
    stats, _, err = help_.finished(help_.worker(pattern, shm, prefix=help_.in_small_tmpfs(shm, size)))
    if size == "4k":
        assert "no samples are kept in memory" in err
    else:
        assert 0 < stats["stored"] < 150
        assert stats["memory_hits"] >= stats["stored"]


def test_shared_memory_fills_up_while_it_is_used(pattern, shm, tmp_path):
    """The budget said there was room, and then another program took it: an error return, not SIGBUS."""
    script = (
        "import sys, numpy as np\n"
        "from tests import datacache_help as help_\n"
        "cache = help_.cache(sys.argv[1], sys.argv[2])\n"
        "free = 30000\n"
        "import os; s = os.statvfs(sys.argv[2]); used = s.f_bavail * s.f_frsize - free\n"
        "open(sys.argv[2] + '/other', 'wb').write(bytes(used))\n"
        "for epoch in range(2):\n"
        "    seen = np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))\n"
        "    assert sorted(seen.tolist()) == list(range(150))\n"
        "stats = cache.stats(); print(stats); assert 0 < stats['stored'] < 150, stats\n"
    )
    help_.ran(script, pattern, shm, prefix=help_.in_small_tmpfs(shm, "1m"))


def test_a_containers_shared_memory(tmp_path, shm):
    """Docker's 64 MB: what fits is kept, the forecast says so, and each sample comes once per epoch."""
    script = (
        "import sys\n"
        "import numpy as np, tensorflow as tf\n"
        "import datacache\n"
        "source = datacache.Samples(300, lambda i: i, 'numbers')\n"
        "decode = lambda i: tf.fill([100_000], i)\n"
        "cache = datacache.DataCache(source, decode, memory_dir=sys.argv[1], version='v')\n"
        "for _ in range(2):\n"
        "    found = [batch.numpy() for batch in cache.dataset(8, epochs=1)]\n"
        "    assert all((rows == rows[:, :1]).all() for rows in found)\n"
        "    assert sorted(np.concatenate(found)[:, 0]) == list(range(300))\n"
        "assert 60 < cache.stats()['stored'] < 84, cache.stats()\n"
    )
    out, _ = help_.ran(script, shm, prefix=help_.in_small_tmpfs(shm, "64m"))
    assert re.search(r"datacache: 300 decoded samples .* of them \(2\d%\) fit", out), out


def test_warm_fills_both_stores(pattern, shm):
    """The decoded samples that have room, and the others encoded; again, after samples were refused."""
    cache = large(pattern, shm, memory=1_500_000)
    cache.warm(progress=False)
    for _ in range(2):
        cache.warm(progress=False)  # again what was under way when the decoded ones were full
        stats = cache.stats()
        assert (stats["stored"], stats["encoded_stored"]) == tuple(cache.memory.rooms)
        native.release(cache.memory.path, tf.range(10, dtype=tf.int64))


def test_full_disk(pattern, shm, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    prefix = help_.in_small_tmpfs(local, "5k")
    stats, _, err = help_.finished(help_.worker(pattern, shm, local, prefix=prefix))
    assert stats["copies"] < 3 and stats["stored"] == 150
    assert "No space left" in err


def test_read_only_root(pattern, shm, tmp_path):
    """Directories on a read-only disk: a warning, and everything from the central storage."""
    root = tmp_path / "root"
    root.mkdir()
    prefix = help_.with_mounts(f'mount -t tmpfs -o ro tmpfs "{root}"')
    stats, _, err = help_.finished(help_.worker(pattern, root, root / "local", prefix=prefix))
    assert "no local copies" in err and "no samples are kept in memory" in err
    assert stats["stored"] == stats["capacity"] == 0 and stats["original_reads"] >= 300


def test_copies_on_a_disk_that_became_read_only(pattern, shm, tmp_path):
    """They are read, whatever else a killed run has left there."""
    local = tmp_path / "local"
    help_.finished(help_.worker(pattern, shm, local, epochs=1))
    for copy in local_level.copies_in(local):
        copy.with_name(copy.name + ".tmp.1.1").touch()
    prefix = help_.with_mounts(f'mount --bind "{local}" "{local}" && mount -o remount,bind,ro "{local}"')
    stats, _, err = help_.finished(help_.worker(pattern, tmp_path / "other", local, prefix=prefix))
    assert stats["original_reads"] == 0 and stats["local_hit_rate"] == 1, err


def test_a_damaged_copy_on_a_disk_that_became_read_only(pattern, shm, tmp_path):
    """It cannot be made anew, and the original is not to blame."""
    local = tmp_path / "local"
    help_.finished(help_.worker(pattern, shm, local, epochs=1))
    for index in local.rglob("index/*.npy"):
        index.unlink()
    copy = local_level.copies_in(local)[0]
    data = bytearray(copy.read_bytes())
    data[0] ^= 1  # of the first record's length
    copy.write_bytes(data)
    prefix = help_.with_mounts(f'mount --bind "{local}" "{local}" && mount -o remount,bind,ro "{local}"')
    stats, _, err = help_.finished(help_.worker(pattern, tmp_path / "other", local, prefix=prefix))
    assert stats["original_reads"] > 0, err


SAMPLE = 64 + 64 + 128  # bytes of a sample of `help_.cache` in memory


def test_a_process_that_lacks_descriptors_leaves_the_store(pattern, shm, monkeypatch, caplog):
    """It is no damage, and others use the file."""
    help_.finished(help_.worker(pattern, shm, epochs=1))
    fault_of = memory_level.Memory._fault_of
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def without_descriptors(*arguments):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            return fault_of(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with monkeypatch.context() as patch:
        patch.setattr(memory_level.Memory, "_fault_of", without_descriptors)
        cache = help_.cache(pattern, shm)
    assert cache.memory.path is None and "Too many open files" in caplog.text
    stats = help_.cache(pattern, shm).stats()  # while the process that does without is still there
    assert stats["stored"] == stats["capacity"] == 150


def test_two_caches_share_what_is_free(pattern, shm):
    """What the first may still come to take is not promised to the second."""
    script = (
        "import sys\n"
        "from tests import datacache_help as help_\n"
        "one, two = (help_.cache(*sys.argv[1:], version=v) for v in ('one', 'two'))\n"
        "rooms = [cache.stats()['capacity'] for cache in (one, two)]\n"
        "assert rooms[0] == 150 and 0 < rooms[1] < 150, two.memory.limit\n"
        "assert 'other stores in use' in two.memory.limit.reason\n"
        "two.warm(progress=False); one.warm(progress=False)\n"
        "assert one.stats()['stored'] == 150\n"
        "assert two.stats()['stored'] == rooms[1]\n"
        "one.memory._lease.release()\n"
        "three = help_.cache(*sys.argv[1:], version='three')\n"
        "print(three.memory.limit)\n"
        "assert 'other stores in use' not in three.memory.limit.reason\n"
    )
    _, err = help_.ran(script, pattern, shm, prefix=help_.in_small_tmpfs(shm, "108k"))
    assert "no room" not in err


def test_the_least_limit_of_those_who_use_a_store(pattern, shm):
    first = help_.cache(pattern, shm, memory=40 * SAMPLE)
    second = help_.cache(pattern, shm)
    assert [cache.stats()["capacity"] for cache in (first, second)] == [40, 40]
    assert "another DataCache" in second.memory.limit.reason
    second.warm(progress=False)
    third = help_.cache(pattern, shm, memory=20 * SAMPLE)
    assert third.stats()["capacity"] == 40  # what is there stays
    for cache in (first, second, third):
        cache.memory._lease.release()
    assert help_.cache(pattern, shm).stats()["capacity"] == 150  # nobody else's limit outlives them


def test_looking_at_a_store_is_no_use_of_it(pattern, shm):
    """As `tss cache ls` looks, while runs open it: none inherits the limit of one that has ended."""
    help_.cache(pattern, shm, memory=40 * SAMPLE).memory._lease.release()
    [store] = memory_level.stores_in(memory_level.root_of(shm))
    looked, done = [], threading.Event()

    def look():
        while not done.is_set():
            with memory_level.unopened(store.parent):
                looked.append(directories.is_in_use(store))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(20):
            cache = help_.cache(pattern, shm)
            assert cache.stats()["capacity"] == 150
            at_least = len(looked) + 2  # one look begins while it is open
            while len(looked) < at_least:
                time.sleep(0.001)
            cache.memory._lease.release()
            help_.cache(pattern, shm, memory=40 * SAMPLE).memory._lease.release()
    finally:
        done.set()
        looker.join()
    assert {False, True} <= set(looked)


def large(pattern, shm, **arguments) -> datacache.DataCache:
    """A cache of samples that take twenty kilobytes when they are decoded."""
    def decode(record):
        return tf.repeat(help_.decode_record(record)["number"], 2500)

    return datacache.DataCache(datacache.TFRecords(pattern), decode, memory_dir=str(shm), **arguments)


def numbers_of(dataset) -> list[int]:
    batches = [batch.numpy() for batch in dataset]
    assert all((batch == batch[:, :1]).all() for batch in batches)
    return sorted(np.concatenate(batches)[:, 0].tolist())


def test_what_does_not_fit_decoded_is_kept_encoded(pattern, shm, capsys):
    cache = large(pattern, shm, memory=1_500_000)
    decoded, encoded = cache.memory.rooms
    assert 30 < decoded < 75 and decoded + encoded == 150
    for _ in range(2):  # batches that are under way when the decoded ones are full are read again
        assert numbers_of(cache.dataset(16, epochs=1)) == list(range(150))
    before = native.read_stats().original_reads
    assert numbers_of(cache.dataset(16, epochs=1)) == list(range(150))
    stats = cache.stats()
    assert (stats["stored"], stats["encoded_stored"]) == (decoded, encoded)
    assert f"{encoded} are kept encoded" in capsys.readouterr().out
    assert [native.verify(str(path)) for path in memory_level.stores(cache.memory._lease.path)] == [0, 0]
    again = large(pattern, shm, memory=1_500_000)  # another run
    assert numbers_of(again.dataset(16, epochs=1)) == list(range(150))
    assert native.read_stats().original_reads == before
    assert large(pattern, shm, memory=1_500_000, version="2", nodes=3).memory.rooms == (74, 0)


def test_a_few_samples_that_are_much_larger_do_not_break_the_limit(shm, tmp_path):
    """They are read each time; the others are kept."""
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(300):
            writer.write(bytes(10_000_000 if number % 100 == 0 else 1_000))
    cache = datacache.DataCache(
        datacache.TFRecords(path),
        lambda record: tf.zeros([25_000]) + tf.cast(tf.strings.length(record), tf.float32),
        memory_dir=str(shm),
        memory="4MB",
    )
    batches = iter(cache.dataset(100, seed=2))
    lengths = np.concatenate([next(batches)[:, 0] for _ in range(6)])
    assert sorted(lengths.tolist()) == [1_000] * 594 + [10_000_000] * 6
    encoded = pathlib.Path(cache.memory.encoded_path)
    assert cache.stats()["encoded_stored"] > 250
    assert 512 * encoded.stat().st_blocks < 4 << 20


def test_a_slot_for_each_encoded_sample_has_an_address():
    sizes = np.full(20_000_000, 200_000)
    sizes[7] = 10_000_000
    most = memory_level._most_encoded(sizes)
    assert 200_000 < most < 10_000_000 and most * len(sizes) < 100 << 40


def test_encoded_samples_that_nobody_asks_for_are_gone(pattern, shm, tmp_path):
    """They would take what the limit gives to others."""
    for version, later in (("1", {}), ("2", {"memory": 1_500_000, "local_dir": tmp_path / "copies"})):
        cache = large(pattern, shm, memory=1_500_000, version=version)
        cache.warm(progress=False)
        encoded = pathlib.Path(cache.memory.encoded_path)
        assert encoded.stat().st_blocks > 0
        cache.memory._lease.release()
        cache = large(pattern, shm, version=version, **later)  # all fits decoded, or is on the disk
        assert cache.memory.rooms.encoded == 0 and not encoded.exists()
        cache.memory._lease.release()


def test_no_room_for_the_table_of_encoded_samples(pattern, shm, tmp_path):
    """A run with copies has filled the memory; one without keeps what is there, and no encoded samples."""
    script = (
        "import os, sys\n"
        "from tests import test_datacache_rooms as rooms\n"
        "pattern, shm, local = sys.argv[1:]\n"
        "first = rooms.large(pattern, shm, local_dir=local, version='v')\n"
        "rooms.numbers_of(first.dataset(16, epochs=1))\n"
        "with open(shm + '/other', 'wb') as file:\n"
        "    file.write(bytes(os.statvfs(shm).f_bavail * os.statvfs(shm).f_bsize - 4096))\n"
        "second = rooms.large(pattern, shm, version='v')\n"
        "assert second.memory.encoded_path is None\n"
        "assert rooms.numbers_of(second.dataset(16, epochs=1)) == list(range(150))\n"
        "stats = second.stats()\n"
        "assert 20 < stats['stored'] < 150 and stats['memory_hits'] >= stats['stored'], stats\n"
    )
    _, err = help_.ran(script, pattern, shm, tmp_path / "local", prefix=help_.in_small_tmpfs(shm, "1m"))
    assert "no samples are kept encoded" in err


def test_copies_on_the_local_disk_are_the_encoded_form(pattern, shm, tmp_path):
    cache = large(pattern, shm, memory=1_500_000, local_dir=tmp_path / "local")
    assert cache.memory.rooms == (1_500_000 // (20000 + 64 + 32), 0)
    assert cache.memory.encoded_path is None


def test_a_damaged_encoded_sample_is_read_again(pattern, shm):
    cache = large(pattern, shm, memory=1_500_000)
    for _ in range(2):
        assert numbers_of(cache.dataset(16, epochs=1)) == list(range(150))
    with open(cache.memory.encoded_path, "r+b") as file:
        data = file.read()
        file.seek(8192)
        file.write(bytes(byte ^ 1 for byte in data[8192:]))
    assert native.verify(cache.memory.encoded_path) == cache.memory.rooms.encoded
    script = (
        "import sys\n"
        "from tests import test_datacache_rooms as rooms\n"
        "cache = rooms.large(*sys.argv[1:], memory=1_500_000)\n"
        "for _ in range(2):\n"
        "    assert rooms.numbers_of(cache.dataset(16, epochs=1)) == list(range(150))\n"
        "assert rooms.native.read_stats().original_reads == cache.memory.rooms.encoded\n"
        "assert cache.stats()['damaged_samples'] == cache.memory.rooms.encoded > 0\n"
    )
    _, err = help_.ran(script, pattern, shm)
    assert f"damaged samples in {cache.memory.encoded_path}" in err
    assert native.verify(cache.memory.encoded_path) == 0
