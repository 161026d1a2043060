"""The Horovod build: its edits fit the pinned sdist, and what they repair works in real jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping

import pytest
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from tests.thorough import thorough

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent / "tools" / "horovod"))

# Whether ruff takes "build" for our own depends on a directory of that name in the repository.
# isort: off
import build  # noqa: E402
import sdist  # noqa: E402
from edit import Edit, EditError  # noqa: E402
from edits import EDITS  # noqa: E402
# isort: on

WORKER = TESTS / "multiprocess" / "horovod_worker.py"
REMEDY = "run: .venv/bin/python tools/horovod/build.py (or set TSS_CACHE_DIR to its cache)"
JOB_SECONDS = 200  # on a busy machine; a tenth of it otherwise
GLOO_SECONDS = 120  # what an error that needs Gloo's timeout would take
pytestmark = pytest.mark.timeout(2 * JOB_SECONDS)


@pytest.fixture(scope="session")
def tarball() -> pathlib.Path:
    """The pinned sdist as the build left it."""
    path = build.DEFAULT_CACHE / sdist.FILE_NAME
    assert path.exists(), f"{path} is missing; {REMEDY}"
    return path


@pytest.fixture(scope="session")
def pristine(tarball: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The root of the sdist without edits."""
    return sdist.unpack(tarball, tmp_path_factory.mktemp("pristine"), edits=())


def test_sdist_is_the_pinned_one(tarball: pathlib.Path) -> None:
    sdist.verify(tarball)


def test_another_sdist_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / sdist.FILE_NAME).write_bytes(b"not Horovod")
    with pytest.raises(sdist.SdistError, match=f"must be {sdist.SHA256}"):
        sdist.fetch(tmp_path)


def test_edit_names_are_unique() -> None:
    assert len({edit.name for edit in EDITS}) == len(EDITS)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_edit_fits_pristine_source(edit: Edit, pristine: pathlib.Path) -> None:
    text = (pristine / edit.file).read_text()
    edited = edit.edited(text)
    assert edited.count(edit.replacement) == 1
    if edit.expected is None:
        assert edited == edit.replacement != text
    else:
        assert text.count(edit.expected) == 1
        assert edited != text
        assert len(edited) - len(text) == len(edit.replacement) - len(edit.expected)


def test_all_edits_apply_together(tarball: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = sdist.unpack(tarball, tmp_path, EDITS)
    for edit in EDITS:
        assert (root / edit.file).read_text().count(edit.replacement) == 1, edit.name


@pytest.mark.parametrize("text", ["", "reserve(other);\n", "reserve(n);\nreserve(n);\n"])
def test_edit_refuses_other_text(text: str) -> None:
    edit = Edit("example", "a.cc", "reserve(n);\n", "resize(n);\n", "")
    with pytest.raises(EditError, match="'example'.* a.cc, must be exactly once"):
        edit.edited(text)


def test_edit_refuses_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EditError, match="no file a.cc"):
        Edit("example", "a.cc", None, "", "").apply(tmp_path)


def test_unpack_applies_edits(tmp_path: pathlib.Path) -> None:
    source = tmp_path / f"horovod-{sdist.VERSION}" / "a.cc"
    source.parent.mkdir()
    source.write_text("reserve(n);\n")
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(source, source.relative_to(tmp_path))
    edit = Edit("example", "a.cc", "reserve", "resize", "")
    root = sdist.unpack(archive, tmp_path / "out", [edit])
    assert (root / "a.cc").read_text() == "resize(n);\n"


def test_fingerprint_follows_edits_and_gpu() -> None:
    reference = build.fingerprint(EDITS, gpu=False)
    assert reference == build.fingerprint(EDITS, gpu=False)
    changed = dataclasses.replace(EDITS[0], replacement="// other\n")
    reworded = dataclasses.replace(EDITS[0], reason="in other words")
    assert reference == build.fingerprint((reworded, *EDITS[1:]), gpu=False)
    others = {
        build.fingerprint(EDITS, gpu=True),
        build.fingerprint(EDITS[1:], gpu=False),
        build.fingerprint((changed, *EDITS[1:]), gpu=False),
    }
    assert len(others | {reference}) == 4


def test_readme_has_the_current_table() -> None:
    readme = pathlib.Path(build.__file__).with_name("README.md").read_text()
    assert build.edits_table() in readme


def test_missing_compiler_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_path", lambda: "")
    with pytest.raises(build.BuildError, match=r"'g\+\+'.*apt-get install g\+\+"):
        build.check_machine(False, pathlib.Path("/cache"))


def test_a_path_with_a_blank_is_refused() -> None:
    with pytest.raises(build.BuildError, match="without blanks: .*, /my cache "):
        build.check_machine(False, pathlib.Path("/my cache"))


def test_make_settings_of_the_caller_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", "--jobserver-auth=3,4")
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    environment = build.build_environment("0.28.1+tss.c0", False, pathlib.Path("/source"))
    assert environment["MAKEFLAGS"] == f"-j{len(os.sched_getaffinity(0))}"
    assert environment["HOROVOD_LOCAL_VERSION"] == "tss.c0"
    assert not {"MAKELEVEL", "HOROVOD_GPU_OPERATIONS"} & set(environment)


def test_second_call_is_quick() -> None:
    """Also proves that the jobs below run on our build and no other."""
    version = build.installed_version()
    wanted = {build.wanted_version(gpu=False), build.wanted_version(gpu=True)}
    assert version in wanted, f"Horovod {version} is installed; {REMEDY}"
    command = [sys.executable, build.__file__, *(["--gpu"] if "+tss.g" in version else [])]
    begin = time.monotonic()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert time.monotonic() - begin < 20  # a build takes minutes
    assert output == f"Horovod {version}\n"


@contextlib.contextmanager
def job(
    size: int, *arguments: str, environment: Mapping[str, str], prefix: tuple[str, ...] = ()
) -> Iterator[list[subprocess.Popen]]:
    """Starts `size` workers on this machine; whoever still runs at the end is killed.

    Unlike horovodrun it leaves the survivors alone when one worker fails.
    """
    server = RendezvousServer()
    port = server.start()
    slots = get_host_assignments(parse_hosts(f"localhost:{size}"), size)
    server.init(slots)
    workers = []
    try:
        for slot in slots:
            rank = {
                "HOROVOD_RANK": slot.rank,
                "HOROVOD_SIZE": slot.size,
                "HOROVOD_LOCAL_RANK": slot.local_rank,
                "HOROVOD_LOCAL_SIZE": slot.local_size,
                "HOROVOD_CROSS_RANK": slot.cross_rank,
                "HOROVOD_CROSS_SIZE": slot.cross_size,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            }
            worker = subprocess.Popen(
                [*prefix, sys.executable, str(WORKER), *arguments],
                env=os.environ
                | {name: str(value) for name, value in rank.items()}
                | {
                    "HOROVOD_HOSTNAME": "localhost",
                    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                    "HOROVOD_CONTROLLER": "gloo",
                    "HOROVOD_CPU_OPERATIONS": "gloo",
                    "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_SECONDS),
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                }
                | dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            workers.append(worker)
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        server.stop()


def outcome(worker: subprocess.Popen) -> tuple[int, dict, str]:
    """Returns a worker's exit code, its report and its standard error."""
    output, errors = worker.communicate(timeout=JOB_SECONDS)
    lines = output.splitlines()
    return worker.returncode, json.loads(lines[-1]) if lines else {}, errors


# With this and no call from a rank, the others get an error after 5 to 7 seconds.
STALL = {
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "2",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
}


@thorough
def test_stall_inspector_names_the_missing_rank() -> None:
    with job(2, "--absent", "1", environment=STALL) as workers:
        code, report, errors = outcome(workers[0])
    assert code == 3, errors
    assert "Horovod has been shut down" in report["message"]
    assert 4 < report["seconds"] < GLOO_SECONDS / 2
    assert "Missing ranks:\n1!: [group_sum" in errors, errors


def test_stall_in_a_process_set_reaches_the_ranks_outside() -> None:
    with job(3, "--process-set", "0,1", "--absent", "1", environment=STALL) as workers:
        inside, outside = outcome(workers[0]), outcome(workers[2])
    for code, report, errors in (inside, outside):
        assert code == 3, errors
        assert "Horovod has been shut down" in report["message"]
    assert 4 < inside[1]["seconds"] < GLOO_SECONDS / 2
    assert outside[1]["seconds"] < GLOO_SECONDS / 2


@thorough
def test_dead_peer_with_process_sets_is_an_exception() -> None:
    environment = {"HOROVOD_GLOO_IFACE": "lo"}
    with job(3, "--process-set", "0,1", "--killed", "1", environment=environment) as workers:
        member, dead, outsider = [outcome(worker) for worker in workers]
    assert dead[0] == -signal.SIGKILL
    for code, report, errors in (member, outsider):
        assert code == 3, errors  # not -SIGABRT
        assert "Horovod has been shut down" in report["message"]
        assert report["seconds"] < GLOO_SECONDS / 2


@thorough
def test_waiting_takes_no_processor_time() -> None:
    """Little, at most; without the edits 0.8 s, and 5 s more for a timeline to which nobody writes."""
    environment = {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_TIMELINE": "DYNAMIC"}
    with job(2, "--idle", "5", environment=environment) as workers:
        outcomes = [outcome(worker) for worker in workers]
    for code, report, errors in outcomes:
        assert code == 0, errors
        assert report["idle"] < 0.6  # seconds


def host_name_elsewhere(directory: pathlib.Path) -> tuple[str, ...]:
    """Returns a command prefix under which the host name resolves to nobody's address."""
    hosts = directory / "hosts"
    hosts.write_text("127.0.0.1 localhost\n192.0.2.1 elsewhere\n")  # TEST-NET-1, RFC 5737
    script = f'hostname elsewhere && mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec "$@"'
    prefix = ("unshare", "--uts", "--mount", "sh", "-c", script, "sh")
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"needs root for a host name of its own: {probe.stderr.strip()}")
    return prefix


def test_process_set_uses_the_interface_asked_for(tmp_path: pathlib.Path) -> None:
    prefix = host_name_elsewhere(tmp_path)
    # Without the interface Gloo asks the host name and fails, so the name does lead astray.
    with job(1, environment={}, prefix=prefix) as workers:
        code, _, errors = outcome(workers[0])
    assert code == -signal.SIGABRT
    assert "gloo" in errors

    environment = {"HOROVOD_GLOO_IFACE": "lo"}
    with job(3, "--process-set", "0,1", environment=environment, prefix=prefix) as workers:
        outcomes = [outcome(worker) for worker in workers]
    for (code, report, errors), total in zip(outcomes, ([2.0] * 4, [2.0] * 4, None), strict=True):
        assert code == 0, errors
        assert report["sum"] == total
