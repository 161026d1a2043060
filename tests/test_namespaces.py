"""What is left of emulated clusters, what they share, and machines that cannot hold one."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.lab_help import (
    ENVIRONMENT,
    PATIENCE,
    PYTHONPATH,
    Marker,
    first_rank,
    network_of,
    require_namespaces,
    shell,
    wait_until,
)
from tf_sparse_strategy.cluster import Netlab, NetlabError


@pytest.fixture(scope="module")
def machine():
    require_namespaces()


@pytest.fixture
def marker(monkeypatch) -> Marker:
    return Marker(monkeypatch)


def test_nothing_is_left_of_a_lab(machine, marker):
    with Netlab(nodes=3, local=2) as lab:
        assert lab.run(["false"], timeout=PATIENCE).exit_code == 1
        assert len(marker.namespaces()) == 4
    assert not marker.processes()


def test_nothing_is_left_after_an_exception(machine, marker):
    with pytest.raises(RuntimeError, match="in between"):
        with Netlab(nodes=1, local=1) as lab, lab.start(["sleep", "600"]):
            assert marker.processes()
            raise RuntimeError("in between")
    assert not marker.processes()


def test_nothing_is_left_when_a_fork_holds_the_pipes(machine, marker):
    """As a data loader's worker of the program that made the lab."""
    with Netlab(nodes=1, local=1):
        fork = os.fork()
        if not fork:
            signal.pause()
    try:
        assert wait_until(lambda: marker.processes() <= {fork})
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_when_netlab_is_ended(machine, marker, number):
    command = ["-m", "tf_sparse_strategy.cli", "netlab", "--nodes", "2", "--local", "1", "--"]
    process = subprocess.Popen(
        [sys.executable, *command, *shell("echo up; sleep 600 & sleep 600")],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "up" in process.stdout.readline()
    networks = marker.namespaces()
    assert len(networks) == 3
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert wait_until(lambda: not marker.processes())
    pids = [path.name for path in pathlib.Path("/proc").glob("[0-9]*")]
    assert not networks & {network_of(pid) for pid in pids}


SERVE = "import socket; socket.create_server(('node0', 7000)).accept()"
CALL = """
import socket, time
while True:
    try:
        socket.create_connection(('node0', 7000))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""


def test_two_labs_at_once_do_not_meet(machine):
    call, serve = (f'exec "{sys.executable}" -c "{script}"' for script in (CALL, SERVE))
    talk = first_rank(serve, call)
    with Netlab(nodes=2, local=1) as one, Netlab(nodes=2, local=1) as other:
        idle = other.run(["true"], timeout=PATIENCE)
        assert one.run(talk, timeout=PATIENCE).exit_code == 0
        assert other.traffic() == idle.links  # nothing of it went here
        assert one.traffic()[0].received > 0
        with concurrent.futures.ThreadPoolExecutor() as threads:
            results = list(threads.map(lambda lab: lab.run(talk, timeout=PATIENCE), (one, other)))
    assert [result.exit_code for result in results] == [0, 0]


def test_only_root_may(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetlabError, match="needs root.*sudo"):
        Netlab()


def test_forbidden_namespaces_are_named(machine):
    """As in a container: root without the capability."""
    script = "from tf_sparse_strategy.cluster import check_machine; check_machine()"
    result = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "forbids new namespaces" in result.stderr
    assert "docker run --privileged" in result.stderr


def test_a_missing_tool_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("tf_sparse_strategy.cluster.namespaces._SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetlabError, match="needs 'tc': run `apt-get install iproute2`"):
        Netlab()
