"""`tss cache`: what it says, and that it deletes nothing but what is ours and unused."""

import gc
import io
import os
import pathlib
import re
import shutil
import types

import numpy as np
import pytest

from datacache import command, directories
from datacache import local as local_level
from datacache import memory as memory_level
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


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


def test_a_store_that_is_cleared_is_let_go_of(pattern, shm, capsys):
    """By the process that had it open, and goes on with another one, as a notebook does."""

    def opened(cache):
        return pathlib.Path("/proc/self/maps").read_text().count(cache.memory.path)

    former = help_.cache(pattern, shm, version="1")
    assert sorted(np.concatenate(help_.numbers_of(former.dataset(16, epochs=1)))) == list(range(150))
    assert opened(former) > 0
    path = former.memory.path
    del former
    gc.collect()
    assert command.main(["clear", "--memory-dir", str(shm), pathlib.Path(path).parent.name]) == 0
    cache = help_.cache(pattern, shm, version="2")
    assert path not in pathlib.Path("/proc/self/maps").read_text()
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    assert opened(cache) > 0


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


def test_a_hostile_manifest(pattern, shm, tmp_path, capsys):
    """about.json and the index are only looked at; links in the cache lead nowhere."""
    cache = help_.cache(pattern, shm, tmp_path / "local")
    store = pathlib.Path(cache.memory.path)
    (store.parent / "about.json").write_text('{"source": "\\u001b[31m../../etc", "created": "now"}')
    assert command.main(["ls", "--memory-dir", str(shm)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    [index] = (tmp_path / "local" / "index").glob("*.npy")
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


def test_a_directory_of_the_users_own_stays(pattern, shm, tmp_path, capsys):
    own = tmp_path / "own"
    own.mkdir()
    arguments = ["clear", "--memory-dir", str(shm), "--local-dir", str(own)]
    for _ in range(2):
        cache = help_.cache(pattern, shm, own)
        cache.memory._lease.release()
        cache.local._lease.release()
        assert command.main(arguments) == 0
        assert own.is_dir() and not any(own.iterdir())


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


def test_local_copies_are_listed(pattern, shm, tmp_path, capsys):
    local = tmp_path / "local"
    cache = help_.cache(pattern, shm, local)
    for name in ("ls", "stat"):
        assert command.main([name, "--memory-dir", str(shm), "--local-dir", str(local)]) == 0
        said = capsys.readouterr().out.splitlines()
        assert len(said) == 2 and re.fullmatch(rf"{local}  3 copies  \S+ KB  in use", said[1])
    del cache


@pytest.mark.parametrize(
    "kind, blocks, said",
    [
        ("tmpfs", 1 << 20, None),
        ("ext4", 1 << 20, "{} is on ext4, not on tmpfs"),
        ("tmpfs", 1 << 14, "{} is as small as Docker makes it: start the container with --shm-size"),
    ],
)
def test_doctor_names_what_is_wrong(tmp_path, monkeypatch, capsys, kind, blocks, said):
    """With a file system of that kind and of so many blocks of 4 KB at `tmp_path`."""
    mounts = f"/dev/vda / btrfs rw 0 0\nsome {tmp_path} {kind} rw 0 0\n"
    monkeypatch.setattr(command, "open", lambda path: io.StringIO(mounts), raising=False)
    sizes = types.SimpleNamespace(f_blocks=blocks, f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: sizes)
    assert command.main(["doctor", "--memory-dir", str(tmp_path)]) == (1 if said else 0)
    lines = capsys.readouterr().out.splitlines()
    [least] = [i for i, line in enumerate(lines) if line.startswith("A cache may take")]
    assert [line.startswith(said.format(tmp_path)) for line in lines[least + 1 :]] == ([True] if said else [])


def test_doctor_counts_what_stores_in_use_may_still_take(pattern, shm, capsys):
    arguments = ["doctor", "--memory-dir", str(shm)]
    command.main(arguments)
    assert "other stores" not in capsys.readouterr().out
    cache = help_.cache(pattern, shm)
    command.main(arguments)
    assert "that other stores in use may take" in capsys.readouterr().out
    cache.memory._lease.release()


def test_doctor_of_a_directory_that_is_missing(tmp_path, capsys):
    assert command.main(["doctor", "--memory-dir", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'} cannot be used" in capsys.readouterr().out


def test_commands(pattern, shm, capsys):
    cache = help_.cache(pattern, shm, version="mine")
    name = pathlib.Path(cache.memory.path).parent.name
    place = ["--memory-dir", str(shm)]
    assert command.main(["ls", *place]) == 0
    said = capsys.readouterr().out
    assert name in said and repr(f"TFRecords {pattern}") in said and "'mine'" in said and "in use" in said
    assert command.main(["stat", name, *place]) == 0
    assert "0 of 150 samples" in capsys.readouterr().out
    assert command.main(["verify", *place]) == 0
    cache.warm(progress=False)
    help_.flip(pathlib.Path(cache.memory.path), 8192 + 256 * 7 + 100)
    assert command.main(["verify", *place]) == 1
    assert "1 damaged" in capsys.readouterr().out
    assert command.main(["stat", "../../etc", *place]) == 2
    assert command.main(["clear", "--local-dir", str(shm), *place]) == 2
    assert command.main(["doctor"]) == 0
    assert "A cache may take" in capsys.readouterr().out
