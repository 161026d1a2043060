"""Directories of the cache's own, when many processes open and clear one at the same moment."""

import fcntl
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from datacache import directories

PROCESSES, ROUNDS = 6, 150
# Leases a directory, after trying to clear it some times, and says which marker it has locked.
WORKER = """
import contextlib, os, pathlib, sys, time
from datacache import directories
def written(path):
    return [file for file in path.iterdir() if file.name.startswith("data")]
for line in sys.stdin:
    path, start, clearings = line.split()
    while time.monotonic() < float(start):
        pass
    path = pathlib.Path(path)
    for _ in range(int(clearings)):
        with contextlib.suppress(directories.InUse, FileNotFoundError), directories.alone(path):
            directories.unlink_all(written(path))
            directories.discard(path)
    lease = directories.Lease(path, lambda path: directories.half_written(written(path)))
    directories.write(path / f"data{os.getpid()}", b"mine")
    print(os.fstat(lease._file.fileno()).st_ino, flush=True)
    sys.stdin.readline()
    lease.release()
    print("released", flush=True)
"""


@pytest.fixture
def processes():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKER]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        for _ in range(PROCESSES)
    ]
    yield started
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def say(process: subprocess.Popen, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


@pytest.mark.parametrize("clearing", [False, True])
def test_many_processes_open_a_directory_at_once(tmp_path, processes, clearing):
    """All have a lock on the one marker that is there, and none takes another's files for foreign."""
    for number in range(ROUNDS):
        path = tmp_path / (f"{number}" if not clearing else "same")
        start = time.monotonic() + 0.01
        for i, process in enumerate(processes):
            say(process, f"{path} {start} {i if clearing else 0}")
        locked = {process.stdout.readline().strip() for process in processes}
        assert locked == {str((path / directories.MARKER).stat().st_ino)}, number
        with pytest.raises(directories.InUse), directories.alone(path):
            pass
        files = sorted(file.name for file in path.iterdir())
        assert files == sorted([directories.MARKER, *(f"data{process.pid}" for process in processes)])
        for process in processes:
            say(process, "")
        assert {process.stdout.readline() for process in processes} == {"released\n"}


def test_nobody_is_alone_with_a_lock_on_a_deleted_marker(tmp_path, monkeypatch):
    """Between opening a marker and locking it, another process clears the directory and a third leases it."""
    path = directories.claim(tmp_path / "cache")
    flock, leases = fcntl.flock, []

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        with directories.alone(path):
            directories.discard(path)
        leases.append(directories.Lease(path, lambda path: []))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(directories.InUse), directories.alone(path):
        pass
    assert len(leases) == 1


def test_a_directory_may_be_cleared_while_it_is_made(tmp_path, monkeypatch):
    """Another process's directory is in the way of mkdir(), and has gone a moment later."""
    path = tmp_path / "cache"
    mkdir = os.mkdir

    def late(*args):
        monkeypatch.setattr(os, "mkdir", mkdir)
        mkdir(path)
        try:
            mkdir(*args)
        finally:
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", late)
    lease = directories.Lease(path, lambda path: [])
    assert os.mkdir is mkdir
    assert directories.is_in_use(path)
    lease.release()


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "cache").write_text("mine")
    with pytest.raises(ValueError, match="is not a directory of this user"):
        directories.claim(tmp_path / "cache")
    assert (tmp_path / "cache").read_text() == "mine"


def test_links_that_lead_nowhere_are_refused(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ValueError, match="symbolic link that leads nowhere"):
        directories.claim(link)
    assert not target.exists()
    target.mkdir()
    assert directories.claim(link) == target.resolve()  # a link of this user's to what is there


def test_half_written_files_are_removed_but_not_under_somebody(tmp_path):
    def leftovers(path: pathlib.Path) -> list[pathlib.Path]:
        return directories.half_written(file for file in path.iterdir() if file.name.startswith("data"))

    first = directories.Lease(tmp_path, leftovers)
    assert first.alone
    for name in ("data", "data.tmp.1", "foreign.tmp.1", ".datacache.tmp.1"):
        (tmp_path / name).write_text("")
    before = set(tmp_path.iterdir())
    second = directories.Lease(tmp_path, leftovers)
    assert not second.alone
    second.release()
    assert set(tmp_path.iterdir()) == before
    first.release()
    directories.Lease(tmp_path, leftovers).release()
    # A marker's temporary may be that of a process which is about to claim the directory.
    assert before - set(tmp_path.iterdir()) == {tmp_path / "data.tmp.1"}


def test_temporary_names_are_nobody_elses(tmp_path):
    names = {directories.temporary_of(tmp_path / "store") for _ in range(100)}
    assert len(names) == 100
    assert all(name.name.startswith("store.tmp.") for name in names)


FORKING = """
import os, sys
from datacache import directories
lease = directories.Lease(sys.argv[1], lambda path: [])
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
sys.stdin.readline()  # lives on without the parent
"""


def test_a_forked_child_has_no_lease(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path / "cache")],
        stdin=pipe, stdout=pipe, env=environment, text=True,
    )
    child = int(parent.stdout.readline())
    assert parent.wait(timeout=60) == 0
    os.kill(child, 0)  # it is there
    for _ in range(1000):  # and has closed what it inherited, as soon as it runs
        if not directories.is_in_use(tmp_path / "cache"):
            break
        time.sleep(0.01)
    with directories.alone(tmp_path / "cache"):
        os.kill(child, 0)
    parent.stdin.close()


def test_one_process_at_a_time_opens_stores(tmp_path):
    path = directories.claim(tmp_path / "root")
    inside, most = [], []

    def enter():
        with directories.one_at_a_time(path / directories.MARKER):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5
