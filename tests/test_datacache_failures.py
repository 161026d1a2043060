"""What must not lose or falsify a sample: kills, full and read-only disks, damage, hostile names."""

import gc
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import command, directories
from datacache import local as local_level
from datacache import memory as memory_level
from tests import datacache_help as help_

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def worker(pattern, shm, local="-", epochs=2, seed=0, prefix=()) -> subprocess.Popen:
    module = [sys.executable, "-m", "tests.datacache_worker"]
    arguments = [pattern, str(shm), str(local), str(epochs), str(seed)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*prefix, *module, *arguments], stdout=pipe, stderr=pipe, env=ENVIRONMENT, text=True
    )


def finished(process: subprocess.Popen) -> tuple[dict, str, str]:
    """The statistics of a worker that ended well, and all it printed."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), out, err


@pytest.fixture
def shm(tmp_path):
    path = tmp_path / "shm"
    path.mkdir()
    return path


@pytest.fixture
def pattern(tmp_path):
    return help_.records(tmp_path / "source")


def test_two_runs_fill_one_cache_at_once(pattern, shm, tmp_path):
    runs = [worker(pattern, shm, tmp_path / "local", seed=seed) for seed in (0, 1)]
    stats = [finished(run)[0] for run in runs]
    assert [s["stored"] for s in stats] == [150, 150]
    assert sum(s["copies"] for s in stats) == 3  # each file was read by one of them
    cache = help_.cache(pattern, shm, tmp_path / "local")
    assert native.verify(cache.memory.path) == 0


# What DataCache does, without the pipeline whose tracing would take most of the time: copies, index, store.
# TensorFlow must not run before a fork: the parent only imports.
FORKED = """
import os, random, signal, sys
import tensorflow as tf
import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import local as local_level, memory as memory_level
from tests import datacache_help as help_
pattern, shm, local = sys.argv[1:]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # should the test fail and leave it
        source = datacache.TFRecords(pattern)
        source.open(local_level.LocalCopies(local))
        read = source.reader()
        ids = random.Random(line).sample(range(60), 60)
        sample = help_.decode_record(*read(tf.constant(ids[0], tf.int64)))
        specs = [tf.TensorSpec.from_tensor(x) for x in tf.nest.flatten(sample)]
        name = memory_level.identity(source.fingerprint, "v", 60, specs)
        memory = memory_level.Memory(shm, name, 60, specs, "auto", {})
        while True:
            for i in ids:
                values = tf.nest.flatten(help_.decode_record(*read(tf.constant(i, tf.int64))))
                native.put(memory.path, tf.constant([i], tf.int64), [x[None] for x in values])
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def seconds_to_fill(shm: pathlib.Path) -> float:
    """Until all samples of the only store are there: how long this machine needs at present."""
    begin = time.monotonic()
    while time.monotonic() < begin + 60:
        if any(native.store_stats(str(store)).stored == 60 for store in shm.glob("*/*/store")):
            return time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError("the worker fills nothing")


@pytest.mark.timeout(600)
def test_killed_at_200_points(tmp_path, shm):
    """A process that copies, indexes and fills is killed at any moment; the next goes on with what is there.

    Between kills something is taken away at random, so that there is always something to write.
    """
    pattern = help_.records(tmp_path / "source", files=2, per_file=30)
    local = tmp_path / "local"
    verify = ["verify", "--memory-dir", str(shm), "--local-dir", str(local)]
    chance = random.Random(1)
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKED, pattern, str(shm), str(local)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT, text=True,
    )
    half_filled = longest = 0
    for point in range(200):
        parent.stdin.write(f"{point}\n")
        parent.stdin.flush()
        child = int(parent.stdout.readline())
        if not longest:
            longest = 1.2 * seconds_to_fill(shm)
        else:
            time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        for store in shm.glob("*/*/store"):
            assert native.verify(str(store)) == 0, point
            half_filled += 0 < native.store_stats(str(store)).stored < 60
            if chance.random() < 0.3:
                store.unlink()
        for copy in local_level.copies_in(local):
            assert native.check_copy(str(copy)), point
            if chance.random() < 0.3:
                copy.unlink()
        for index in local.glob("index/*.npy"):
            if chance.random() < 0.3:
                index.unlink()
        if point % 20 == 0:
            assert command.main(verify) == 0, point
    parent.stdin.close()
    assert parent.wait(timeout=60) == 0
    assert half_filled > 5  # it was killed while it worked
    cache = help_.cache(pattern, shm, local, version="v")
    assert len(list(shm.glob("*/*/.datacache"))) == 1  # the workers' store is the cache's
    assert not list(local.glob("**/*.tmp.*"))  # what was half written is gone
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(60))
    assert command.main(verify) == 0


def in_small_tmpfs(mount: pathlib.Path, size: str) -> list[str]:
    """A command prefix: a mount namespace of its own in which `mount` is a tmpfs of that size."""
    script = f'mount -t tmpfs -o size={size} tmpfs "{mount}" && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]


@pytest.mark.parametrize("size", ["24k", "4k"])
def test_full_shared_memory(pattern, shm, size):
    """With room for a part of the samples, and with not even room for the table."""
    stats, _, err = finished(worker(pattern, shm, prefix=in_small_tmpfs(shm, size)))
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
    prefix = in_small_tmpfs(shm, "1m")
    result = subprocess.run(
        [*prefix, sys.executable, "-c", script, pattern, str(shm)],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )
    assert result.returncode == 0, result.stderr


def test_full_disk(pattern, shm, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    stats, _, err = finished(worker(pattern, shm, local, prefix=in_small_tmpfs(local, "5k")))
    assert stats["copies"] < 3 and stats["stored"] == 150
    assert "No space left" in err


def test_read_only_root(pattern, shm, tmp_path):
    """Directories on a read-only disk: a warning, and everything from the central storage."""
    root = tmp_path / "root"
    root.mkdir()
    script = f'mount -t tmpfs -o ro tmpfs "{root}" && exec "$@"'
    prefix = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    stats, _, err = finished(worker(pattern, root, root / "local", prefix=prefix))
    assert "no local copies" in err and "no samples are kept in memory" in err
    assert "stored" not in stats and stats["original_reads"] >= 300


def flip(path: pathlib.Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_a_flipped_bit_in_memory_is_read_again(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm, tmp_path / "local")
    cache.warm(progress=False)
    flip(pathlib.Path(cache.memory.path), 8192 + 256 * 7 + 100)
    assert native.verify(cache.memory.path) == 1
    stats, _, _ = finished(worker(pattern, shm, tmp_path / "local"))  # checks at its first read
    assert stats["damaged_samples"] == 1 and stats["memory_misses"] == 1
    assert native.verify(cache.memory.path) == 0


def test_a_damaged_copy_is_not_taken_for_a_damaged_original(pattern, shm, tmp_path):
    """Where records begin is read from the copy: the length of one of them is damaged there."""
    local = tmp_path / "local"
    help_.cache(pattern, shm, local, memory=0)
    for index in (local / "index").iterdir():
        index.unlink()
    for copy in local_level.copies_in(local):
        flip(copy, 3)
    cache = help_.cache(pattern, shm, local, memory=0)
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))


@pytest.mark.parametrize("header", [True, False])
def test_a_damaged_store_is_made_anew(pattern, shm, header):
    cache = help_.cache(pattern, shm)
    cache.warm(progress=False)
    store = pathlib.Path(cache.memory.path)
    if header:
        flip(store, 10)
    else:
        os.truncate(store, 5000)
    _, _, err = finished(worker(pattern, shm, epochs=1))
    assert "made anew" in err


def test_a_damaged_copy_is_copied_again(pattern, shm, tmp_path):
    local = tmp_path / "local"
    cache = help_.cache(pattern, shm, local, memory=0)
    copy = local_level.copies_in(local)[0]
    flip(copy, 300)
    before = native.read_stats()
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    after = native.read_stats()
    assert (after.damaged - before.damaged, after.copies - before.copies) == (1, 1)
    assert native.check_copy(str(copy))


def test_a_damaged_image_copy_is_copied_again(tmp_path, shm):
    source = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    local = tmp_path / "local"
    cache = datacache.DataCache(source, help_.decode_image, local, memory=0)
    list(cache.dataset(24, epochs=1))
    for copy in local_level.copies_in(local):
        flip(copy, 200)
    before = native.read_stats()
    [(pixels, labels)] = cache.dataset(24, epochs=1)
    assert native.read_stats().damaged - before.damaged == 24
    numbers = np.round(pixels.numpy().mean(axis=(1, 2, 3)) / 9)
    np.testing.assert_array_equal(numbers // 12, labels)


def test_a_damaged_original_is_named(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm)
    original = pathlib.Path(pattern).parent / "1.tfrecord"
    flip(original, 200)
    with pytest.raises(tf.errors.DataLossError, match="1.tfrecord"):
        help_.numbers_of(cache.dataset(16, epochs=1))


@pytest.mark.parametrize("more", [b"", b"more"])
@pytest.mark.parametrize("local", [False, True])
def test_an_original_that_changes_meanwhile_is_named(tmp_path, shm, local, more):
    source = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    path = pathlib.Path(source.files[3].path)
    path.write_bytes(path.read_bytes() + more)
    cache = datacache.DataCache(
        source, help_.decode_image, tmp_path / "local" if local else None, memory_dir=str(shm)
    )
    with pytest.raises(tf.errors.DataLossError, match="003.jpg.* changed"):
        list(cache.dataset(8, epochs=1))


def test_no_record_file(tmp_path, shm):
    (tmp_path / "text").write_text("not a record, but long enough for one")
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


def test_hostile_names(tmp_path):
    """Whatever files and classes are called, nothing is written beside the cache."""
    source = tmp_path / "source"
    home = tmp_path / "many" / "levels" / "down"  # what climbs from here is still found
    shm, local = home / "shm", home / "local"
    shm.mkdir(parents=True)
    for name in ("..\\..", "-rf *", "$(touch pwned)", "a\nb", "ünï ☃"):
        (source / name).mkdir(parents=True)
        image = tf.io.encode_jpeg(tf.zeros([help_.SIDE, help_.SIDE, 3], tf.uint8)).numpy()
        (source / name / "%2e%2e%2fx\n.jpg").write_bytes(image)
    before = set(tmp_path.rglob("*"))
    cache = datacache.DataCache(
        datacache.ImageFolder(str(source)), help_.decode_image, local,
        memory_dir=str(shm), version="../../../up",
    )
    cache.warm(progress=False)
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(local) or path.is_relative_to(shm) for path in new)
    assert len(local_level.copies_in(local)) == 5


def test_a_hostile_manifest(pattern, shm, tmp_path, capsys):
    """about.json and the index are only looked at; links in the cache lead nowhere."""
    cache = help_.cache(pattern, shm, tmp_path / "local")
    store = pathlib.Path(cache.memory.path)
    (store.parent / "about.json").write_text('{"source": "\\u001b[31m../../etc", "created": "now"}')
    assert command.main(["ls", "--memory-dir", str(shm)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    [index] = (tmp_path / "local" / "index").iterdir()
    index.write_bytes(b"\x80\x04K\x01." * 20)  # a pickle
    precious = tmp_path / "precious"
    precious.write_text("keep")
    for copy in local_level.copies_in(tmp_path / "local"):
        copy.unlink()
        copy.symlink_to(precious)
    cache = help_.cache(pattern, shm, tmp_path / "local")
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    assert precious.read_text() == "keep"


def test_directories_of_others_are_refused(pattern, shm, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="thesis.tex"):
        help_.cache(pattern, shm, documents)
    assert not directories.is_ours(documents)


def test_clear_deletes_what_is_ours_alone(pattern, shm, tmp_path, capsys):
    local = tmp_path / "local"
    cache = help_.cache(pattern, shm, local)
    cache.warm(progress=False)
    store = pathlib.Path(cache.memory.path).parent
    arguments = ["clear", "--memory-dir", str(shm), "--local-dir", str(local)]
    assert command.main(arguments) == 1
    assert capsys.readouterr().out.count("in use") == 2
    cache.memory._lease.release()
    cache.local._lease.release()
    foreign = {local / "notes.txt", local / "files" / "ab" / "thesis.tex", store / "store.mine"}
    for path in foreign:
        path.write_text("mine")
    assert command.main(arguments) == 0
    left = {path for root in (local, shm) for path in root.rglob("*") if path.is_file()}
    assert {path for path in left if path.name != directories.MARKER} == foreign
    for path in foreign:
        path.unlink()
    assert command.main(arguments) == 0
    assert not local.exists() and not store.exists()
    assert command.main(["ls", "--memory-dir", str(shm)]) == 0
    assert "No stores" in capsys.readouterr().out
    # A job that has the store open is not disturbed by its deletion.
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))


def test_a_dataset_keeps_what_it_reads_from_being_cleared(pattern, shm, tmp_path, capsys):
    local = tmp_path / "local"
    dataset = help_.cache(pattern, shm, local, memory="10KB").dataset(16, epochs=1)
    batches = iter(dataset)
    del dataset
    gc.collect()
    assert command.main(["clear", "--memory-dir", str(shm), "--local-dir", str(local)]) == 1
    assert capsys.readouterr().out.count("in use") == 2
    assert sorted(np.concatenate(help_.numbers_of(batches))) == list(range(150))


@pytest.mark.parametrize("folder", ["files", "files/a7", "index"])
def test_links_among_the_directories_are_not_followed(pattern, shm, tmp_path, folder):
    local, elsewhere = tmp_path / "local", tmp_path / "elsewhere"
    precious = elsewhere / "a7" / ("0" * 64) if folder == "files" else elsewhere / ("0" * 64)
    precious.parent.mkdir(parents=True)
    precious.write_text("keep")
    (elsewhere / "00").mkdir()
    cache = help_.cache(pattern, shm, local)
    cache.local._lease.release()
    shutil.rmtree(local / folder)
    (local / folder).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=f"{folder} is a symbolic link"):
        help_.cache(pattern, shm, local)
    assert precious not in local_level.copies_in(local)
    assert command.main(["clear", "--memory-dir", str(shm / "none"), "--local-dir", str(local)]) == 0
    assert precious.read_text() == "keep" and (elsewhere / "00").is_dir()


def test_commands_after_a_kill_between_marker_and_store(shm, capsys):
    directory = directories.claim(directories.claim(memory_level.root_of(str(shm))) / "killed")
    place = ["--memory-dir", str(shm)]
    for name in ("ls", "stat", "verify"):
        assert command.main([name, *place]) == 0
        assert "killed  no store" in capsys.readouterr().out
    (directory / "store").write_bytes(b"not a store")
    assert command.main(["stat", *place]) == 0
    assert "killed" in capsys.readouterr().out
    assert command.main(["verify", *place]) == 1
    assert command.main(["clear", *place]) == 0
    assert not directory.exists()


def test_commands(pattern, shm, capsys):
    cache = help_.cache(pattern, shm, version="mine")
    name = pathlib.Path(cache.memory.path).parent.name
    place = ["--memory-dir", str(shm)]
    assert command.main(["ls", *place]) == 0
    said = capsys.readouterr().out
    assert name in said and "'mine'" in said and "in use" in said
    assert command.main(["stat", name, *place]) == 0
    assert "0 of 150 samples" in capsys.readouterr().out
    assert command.main(["verify", *place]) == 0
    cache.warm(progress=False)
    flip(pathlib.Path(cache.memory.path), 8192 + 256 * 7 + 100)
    assert command.main(["verify", *place]) == 1
    assert "1 damaged" in capsys.readouterr().out
    assert command.main(["stat", "../../etc", *place]) == 2
    assert command.main(["clear", "--local-dir", str(shm), *place]) == 2
    assert command.main(["doctor"]) == 0
    assert "A cache may take" in capsys.readouterr().out
