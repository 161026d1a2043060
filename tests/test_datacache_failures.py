"""What must not lose or falsify a sample: damage, sources that change or vanish."""

import fcntl
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import local as local_level
from datacache import order
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


def test_a_flipped_bit_in_memory_is_read_again(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm, tmp_path / "local")
    cache.warm(progress=False)
    help_.flip(pathlib.Path(cache.memory.path), 8192 + 256 * 7 + 100)
    assert native.verify(cache.memory.path) == 1
    stats, _, err = help_.finished(help_.worker(pattern, shm, tmp_path / "local"))  # checks at its first read
    assert "1 until now; they are read and decoded again" in err
    assert stats["damaged_samples"] == 1 and stats["memory_misses"] == 1
    assert native.verify(cache.memory.path) == 0


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize("shuffle", ["local", "global"])
def test_a_dataset_checks_what_is_in_memory_of_its_epoch(shuffle, at_once, pattern, shm, monkeypatch):
    """What is damaged after that stays unseen by this process; in other samples it is noticed."""
    cache = help_.cache(pattern, shm)
    monkeypatch.setattr(sys.modules[type(cache).__module__], "_EXAMINED_AT_ONCE", at_once)
    cache.warm(progress=False)
    start = cache.steps_per_epoch(8) + 3
    second = tf.distribute.InputContext(2, 1, 2)
    cache.dataset(8, shuffle=shuffle, start=start, epochs=2, input_context=second)
    plan = cache.order(8, shuffle=shuffle)
    steps = range(start, 2 * plan.steps_per_epoch)
    own = order.ids_of(steps, plan, order.rows_of(1, 2, 8)).numpy()
    others = np.setdiff1d(np.arange(len(cache)), own)
    slots = np.fromfile(cache.memory.path, np.uint64, len(cache), offset=4096).astype(int) - 1
    for sample in (*own, *others):
        help_.flip(pathlib.Path(cache.memory.path), 8192 + 256 * slots[sample] + 100)
    cache.load(tf.constant(own))
    assert cache.stats()["damaged_samples"] == 0
    cache.load(tf.constant(others))
    assert cache.stats()["damaged_samples"] == len(others) > 0


def test_a_dataset_that_is_at_its_end_checks_nothing(pattern, shm):
    cache = help_.cache(pattern, shm)
    cache.warm(progress=False)
    steps = cache.steps_per_epoch(8)
    for start in (steps, steps + 1):
        assert list(cache.dataset(8, start=start, epochs=1)) == []
    help_.flip(pathlib.Path(cache.memory.path), 8192 + 256 * 7 + 100)
    cache.load(tf.range(len(cache), dtype=tf.int64))
    assert cache.stats()["damaged_samples"] == 1


def test_a_damaged_copy_is_not_taken_for_a_damaged_original(pattern, shm, tmp_path):
    """Where records begin is read from the copy: the length of one of them is damaged there."""
    local = tmp_path / "local"
    help_.cache(pattern, shm, local, memory=0)
    for index in (local / "index").iterdir():
        index.unlink()
    for copy in local_level.copies_in(local):
        help_.flip(copy, 3)
    cache = help_.cache(pattern, shm, local, memory=0)
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))


@pytest.mark.parametrize("header", [True, False])
def test_a_damaged_store_is_made_anew(pattern, shm, header):
    cache = help_.cache(pattern, shm)
    cache.warm(progress=False)
    store = pathlib.Path(cache.memory.path)
    if header:
        help_.flip(store, 10)
    else:
        os.truncate(store, 5000)
    _, _, err = help_.finished(help_.worker(pattern, shm, epochs=1))
    assert "made anew" in err


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    "samples, payload_bytes", [(150, 100), (149, 192), (1 << 61, 192), (150, 1 << 63)]
)
def test_a_store_with_a_forged_header(pattern, shm, samples, payload_bytes):
    """With the right checksum, in a file of the size that 64 bits make of it."""
    store = help_.cache(pattern, shm).memory.path
    header = struct.pack("<8sQQ", b"DCstore2", samples, payload_bytes)
    with open(store, "r+b") as file:
        file.write(header + struct.pack("<I", crc32c(header)))
    table, slot = -(-(4096 + 8 * samples) // 4096) * 4096, 64 + -(-payload_bytes // 64) * 64
    os.truncate(store, (table + samples * slot) % (1 << 64))
    stats, _, err = help_.finished(help_.worker(pattern, shm, epochs=1))
    assert "made anew" in err and stats["stored"] == 150


@pytest.mark.parametrize("left", [0, 20000])
def test_a_store_truncated_under_a_reader(pattern, shm, left):
    """In a process of its own, which a signal would kill."""
    script = (
        "import faulthandler, os, sys\n"
        "import numpy as np\n"
        "from tests import datacache_help as help_\n"
        "faulthandler.enable()\n"
        "cache = help_.cache(*sys.argv[1:3])\n"
        "cache.warm(progress=False)\n"
        "batches = iter(cache.dataset(16, epochs=1))\n"
        "seen = [help_.check_batch(next(batches))]\n"
        "os.truncate(cache.memory.path, int(sys.argv[3]))\n"
        "seen += help_.numbers_of(batches)\n"
        "assert sorted(np.concatenate(seen).tolist()) == list(range(150))\n"
        "cache.stats()\n"
        "again = help_.cache(*sys.argv[1:3])\n"  # makes it anew, for this process too
        "again.warm(progress=False)\n"
        "assert again.stats()['stored'] == 150\n"
    )
    _, err = help_.ran(script, pattern, shm, left)
    assert "truncated by somebody" in err and "made anew" in err


def test_two_runs_over_a_source_that_changed_between_them(pattern, shm, tmp_path):
    """Each has copies of what it listed; the older ones go when nobody uses them."""
    local = tmp_path / "local"
    before = help_.cache(pattern, shm, local, memory=0)
    help_.records(tmp_path / "source", first=1000)
    after = help_.cache(pattern, shm, local, memory=0)
    copies = native.read_stats().copies
    for _ in range(2):
        assert sorted(np.concatenate(help_.numbers_of(before.dataset(16, epochs=1)))) == list(range(150))
        seen = np.concatenate(help_.numbers_of(after.dataset(16, epochs=1)))
        assert sorted(seen) == list(range(1000, 1150))
    assert native.read_stats().copies == copies
    assert len(local_level.copies_in(local)) == 6
    before.local._lease.release()
    after.local._lease.release()
    again = help_.cache(pattern, shm, local, memory=0)
    assert len(local_level.copies_in(local)) == 3
    assert sorted(np.concatenate(help_.numbers_of(again.dataset(16, epochs=1)))) == list(range(1000, 1150))
    assert native.read_stats().copies == copies


def test_a_damaged_copy_is_copied_again(pattern, shm, tmp_path):
    local = tmp_path / "local"
    cache = help_.cache(pattern, shm, local, memory=0)
    copy = local_level.copies_in(local)[0]
    help_.flip(copy, 300)
    before = native.read_stats()
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    after = native.read_stats()
    assert (after.damaged - before.damaged, after.copies - before.copies) == (1, 1)
    assert native.check_copy(str(copy))


def test_who_waited_for_a_copy_does_not_read_all_of_it(pattern, shm, tmp_path):
    """Under the lock, for which others wait. Whoever reads what is damaged in it notices."""
    cache = help_.cache(pattern, shm, tmp_path / "local", memory=0)
    file = cache.source.files[0]
    copy = pathlib.Path(cache.local.path(file.path, file.stamp))
    whole = copy.read_bytes()
    os.truncate(copy, 100)  # who reads it deletes it, and waits for the lock
    before = native.read_stats()
    lock = os.open(copy.parent, os.O_RDONLY)
    with futures.ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = pool.submit(cache.sample, 0)
        until = time.monotonic() + 60
        while copy.exists() and time.monotonic() < until:
            time.sleep(0.001)
        copy.write_bytes(whole)
        help_.flip(copy, file.size - 20)  # in the last of its 50 records
        os.close(lock)
        assert first.result()["number"].numpy() == 0
    assert native.read_stats().copies == before.copies
    assert cache.sample(49)["number"].numpy() == 49
    assert native.read_stats().copies == before.copies + 1
    assert copy.read_bytes() == whole


def lengthen(copy: pathlib.Path) -> None:
    """Beyond any memory, with the footer that belongs to that."""
    crc, magic, _, stamp = struct.unpack("<IIqQ", copy.read_bytes()[-24:])
    with open(copy, "r+b") as file:
        file.seek(1 << 42)
        file.write(struct.pack("<IIqQ", crc, magic, 1 << 42, stamp))


@pytest.mark.parametrize("damage", [lambda copy: help_.flip(copy, 200), lengthen], ids=["flip", "lengthen"])
def test_a_damaged_image_copy_is_copied_again(tmp_path, shm, damage):
    source = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    local = tmp_path / "local"
    cache = datacache.DataCache(source, help_.decode_image, local, memory=0)
    list(cache.dataset(24, epochs=1))
    for copy in local_level.copies_in(local):
        damage(copy)
    before = native.read_stats()
    [(pixels, labels)] = cache.dataset(24, epochs=1)
    assert native.read_stats().damaged - before.damaged == 24
    numbers = np.round(pixels.numpy().mean(axis=(1, 2, 3)) / 9)
    np.testing.assert_array_equal(numbers // 12, labels)


def test_a_damaged_original_is_read_twice_and_named(pattern, shm):
    """In a process of its own, which has a log level of its own."""
    original = pathlib.Path(pattern).parent / "1.tfrecord"
    script = (
        "import os, pathlib, sys\n"
        "import pytest\n"
        "import tensorflow as tf\n"
        "from custom_ops.datacache_store import datacache_store as native\n"
        "from tests import datacache_help as help_\n"
        "cache = help_.cache(*sys.argv[1:3])\n"
        "original = pathlib.Path(sys.argv[3])\n"
        "times = original.stat()\n"
        "help_.flip(original, 200)\n"
        "os.utime(original, ns=(times.st_atime_ns, times.st_mtime_ns))  # it rots: nobody has changed it\n"
        "with pytest.raises(tf.errors.DataLossError, match='1.tfrecord'):\n"
        "    help_.numbers_of(cache.dataset(16, epochs=1))\n"
        "assert native.read_stats().damaged == 2\n"
    )
    _, err = help_.ran(script, pattern, shm, original)
    said = re.findall(rf"damaged data at byte \d+ of {original}, (.*)", err)
    assert said == ["reading it again", "twice"]


# In place of the C library's: flips a bit of the first record that is read of the second file.
ONCE_WRONG = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t pread(int fd, void* to, size_t n, off_t at) {
  static int done = 0;
  ssize_t (*real)(int, void*, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
  ssize_t got = real(fd, to, n, at);
  char link[64], path[4096] = "";
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "1.tfrecord") && got > 20 && got < 200 &&
      !__atomic_exchange_n(&done, 1, __ATOMIC_RELAXED)) {
    ((char*)to)[got / 2] ^= 1;
  }
  return got;
}
ssize_t pread64(int fd, void* to, size_t n, off_t at) { return pread(fd, to, n, at); }
"""


def test_an_original_that_is_read_wrongly_once(pattern, shm, tmp_path):
    library = tmp_path / "once_wrong.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(compiler, input=ONCE_WRONG, text=True, check=True)
    stats, _, err = help_.finished(help_.worker(pattern, shm, prefix=["env", f"LD_PRELOAD={library}"]))
    assert (stats["damaged_files"], stats["stored"]) == (1, 150)
    assert re.findall(r"damaged data at byte \d+ of \S*1.tfrecord, (.*)", err) == ["reading it again"]


@pytest.mark.parametrize("more", [b"", b"more"])
@pytest.mark.parametrize("local", [False, True])
def test_an_original_that_changes_meanwhile_is_named(tmp_path, shm, local, more):
    source = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    path = pathlib.Path(source.files[3].path)
    written = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes() + more)
    os.utime(path, ns=(written, written + 10**9))  # not within one tick of the kernel's clock
    cache = datacache.DataCache(
        source, help_.decode_image, tmp_path / "local" if local else None, memory_dir=str(shm)
    )
    with pytest.raises(tf.errors.DataLossError, match="003.jpg.* changed"):
        list(cache.dataset(8, epochs=1))


def test_records_that_change_meanwhile_are_named(pattern, shm):
    """Even if each is a whole record again: a file is looked at once a second while it is read."""
    cache = help_.cache(pattern, shm, memory=0)
    batches = iter(cache.dataset(1, epochs=1))
    next(batches)
    for path in pathlib.Path(pattern).parent.iterdir():
        path.write_bytes(path.read_bytes())
    time.sleep(1.1)
    with pytest.raises(tf.errors.DataLossError, match="tfrecord (are damaged, or the file )?was changed"):
        list(batches)


LONGEST = struct.pack("<Q", 2**64 - 1)  # with its framing, as 64 bits count, 15 bytes
MASKED = ((crc32c(LONGEST) >> 15 | crc32c(LONGEST) << 17) + 0xA282EAD8) % (1 << 32)


@pytest.mark.parametrize(
    "text", [b"not a record, but long enough for one", LONGEST + struct.pack("<I", MASKED) + b"end"]
)
def test_no_record_file(tmp_path, shm, text):
    (tmp_path / "text").write_bytes(text)
    with pytest.raises(tf.errors.DataLossError, match="no TFRecord at byte 0"):
        help_.cache(str(tmp_path / "text"), shm)


def test_a_deleted_source(pattern, shm, tmp_path):
    """What has been copied or is in memory goes on; without either the file is named."""
    cache = help_.cache(pattern, shm, tmp_path / "local")
    uncopied = help_.cache(pattern, shm, memory=0)
    shutil.rmtree(pathlib.Path(pattern).parent)
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    with pytest.raises(tf.errors.NotFoundError, match="tfrecord"):
        help_.numbers_of(uncopied.dataset(16, epochs=1))
    with pytest.raises(ValueError, match="no file matches"):
        help_.cache(pattern, shm)


def test_a_deleted_image(shm, tmp_path):
    """As of records; the others are still read."""
    folder = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    copied = datacache.DataCache(folder, help_.decode_image, tmp_path / "local", memory=0)
    whole = [image.numpy() for image, _ in copied.dataset(24, epochs=1)]
    uncopied = datacache.DataCache(folder, help_.decode_image, memory_dir=str(shm))
    (tmp_path / "images" / "class_1" / "003.jpg").unlink()
    np.testing.assert_array_equal(whole, [image.numpy() for image, _ in copied.dataset(24, epochs=1)])
    with pytest.raises(ValueError, match="class_1/003.jpg cannot be read"):
        uncopied.warm(progress=False)
    assert uncopied.sample(14)[1].numpy() == 1
