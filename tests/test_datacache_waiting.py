"""A storage that hangs: what is waited for is named, and when it answers all goes on."""

import contextlib
import doctest
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import datacache
from datacache import memory, source, waiting
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)

# Of ImageFolder: files are first opened when samples are read.
OF_IMAGES = (
    "import sys\n"
    "import datacache\n"
    "from tests import datacache_help as help_\n"
    "images, shm, local = sys.argv[1:]\n"
    "folder = datacache.ImageFolder(images)\n"
    "cache = datacache.DataCache(folder, help_.decode_image, local or None, memory_dir=shm)\n"
    "[(pixels, labels)] = cache.dataset(24, epochs=1)\n"
    "assert sorted(pixels.numpy()[:, 0, 0, 0].tolist()) == list(range(0, 216, 9))\n"
)


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[None]:
    """Whoever opens the file waits, for up to 45 s: the kernel asks us to give back a lease."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # so it asks
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(file)
        signal.signal(signal.SIGIO, before)


def warned(process: subprocess.Popen, path: pathlib.Path, times: int) -> list[int]:
    """After how many seconds a process first warned that it waits for a file."""
    found, said = [], ""
    for line in process.stderr:
        said += line
        match = re.search(rf"still waiting for {path}, for (\d+) s", line)
        found += [int(match[1])] if match else []
        if len(found) == times:
            return found
    raise AssertionError(f"it ended, and said {said}")


def test_an_index_that_hangs(pattern, shm):
    original = pathlib.Path(pattern).parent / "1.tfrecord"
    with held(original):
        worker = help_.worker(pattern, shm, epochs=1)
        first, second = warned(worker, original, 2)
    assert 5 <= first < 10 <= second
    stats, _, err = help_.finished(worker)
    assert f"the wait for {original} is over after" in err
    assert stats["stored"] == 150


@pytest.mark.parametrize("local", ["", "local"])
def test_an_image_that_hangs(shm, tmp_path, local):
    images = help_.images(tmp_path / "images")
    hanging = images / "class_1" / "003.jpg"
    with held(hanging):
        command = [sys.executable, "-c", OF_IMAGES, images, shm, local and tmp_path / local]
        pipe = subprocess.PIPE
        worker = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=help_.ENVIRONMENT, text=True)
        assert warned(worker, hanging, 1)[0] >= 5
    err = worker.communicate(timeout=200)[1]
    assert worker.returncode == 0, err
    assert f"the wait for {hanging} is over" in err


@pytest.mark.parametrize("of", ["TFRecords", "ImageFolder"])
def test_a_list_that_hangs(of, pattern, tmp_path, monkeypatch, caplog):
    """At growing intervals, and no more when it is over."""
    if of == "TFRecords":
        asked, listed, files = "_stat", pattern, 3
    else:
        asked, listed, files = "_list_mounted", str(help_.images(tmp_path / "images")), 24
    ask = getattr(source, asked)

    def slowly(path):
        time.sleep(0.6)  # not when a warning is due
        return ask(path)

    monkeypatch.setattr(waiting, "_FIRST", 0.1)
    monkeypatch.setattr(source, asked, slowly)
    begin = time.monotonic()
    assert len(getattr(datacache, of)(listed).files) == files
    said = len(caplog.messages)
    assert said >= 1 and 0.1 * 2 ** (said - 1) <= time.monotonic() - begin  # after 0.1, 0.2, 0.4 ... s
    assert all(f"the list of {listed}" in message for message in caplog.messages)
    caplog.clear()
    time.sleep(0.5)
    assert not caplog.messages


def test_a_process_that_stands_still_while_it_opens_a_store(pattern, shm, monkeypatch, caplog):
    help_.cache(pattern, shm)
    monkeypatch.setattr(waiting, "_FIRST", 0.1)
    warn = waiting._log.warning
    with contextlib.ExitStack() as other:
        other.enter_context(memory.unopened(memory.root_of(str(shm))))

        def told(*said):
            warn(*said)
            other.close()

        monkeypatch.setattr(waiting._log, "warning", told)
        help_.cache(pattern, shm)
    assert "still waiting for another process that opens a store in" in caplog.text


def test_a_process_that_is_stopped_while_it_writes(pattern, shm):
    """It holds the lock of a store."""
    cache = help_.cache(pattern, shm)
    with open(cache.memory.path) as store:
        fcntl.flock(store, fcntl.LOCK_EX)
        worker = help_.worker(pattern, shm, epochs=1)
        path = pathlib.Path(f"other processes that write to {cache.memory.path}")
        assert warned(worker, path, 1)[0] >= 5
    stats, _, err = help_.finished(worker)
    assert "is over after" in err
    assert stats["stored"] == 150


def test_nothing_is_said_in_time(pattern, caplog):
    datacache.TFRecords(pattern)
    assert not caplog.messages


def test_the_examples_of_the_module():
    assert doctest.testmod(waiting).failed == 0
