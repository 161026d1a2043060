"""tss doctor finds each planted fault, and none where there is none."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.lab_help import ENVIRONMENT, require_namespaces
from tf_sparse_strategy.cluster import Netlab, facts
from tf_sparse_strategy.cluster.checks import CHECKS

DOCTOR = [sys.executable, "-m", "tf_sparse_strategy.cli", "doctor"]
LIMIT = 200  # seconds for what takes a tenth of it on an idle machine


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [*DOCTOR, *arguments]
    return subprocess.run(
        command,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_one_machine():
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fail" not in result.stdout
    for check in CHECKS:
        assert f" {check}" in result.stdout


def test_a_horovod_that_does_not_load(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError('undefined symbol: x')")
    paths = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    result = run(PYTHONPATH=paths)
    assert result.returncode == 1, result.stderr
    assert "fail  Horovod: " in result.stdout
    assert "undefined symbol: x" in result.stdout
    command = [sys.executable, "-m", "tf_sparse_strategy.cli", "netlab", "--", "true"]
    environment = ENVIRONMENT | {"PYTHONPATH": paths}
    netlab = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert netlab.returncode == 1
    assert "undefined symbol: x" in netlab.stderr or "needs root" in netlab.stderr
    assert "Traceback" not in netlab.stderr


def test_several_hosts():
    """One that is here, one that is nowhere."""
    result = run("-H", "localhost:2,nowhere.invalid:2")
    assert result.returncode == 1
    assert "localhost: " in result.stdout and "workers: 2" in result.stdout
    assert "fail  answers: nowhere.invalid does not answer" in result.stdout
    assert "`ssh nowhere.invalid " in result.stdout


def test_wrong_hosts_are_refused():
    result = run("-H", "vm1")
    assert result.returncode == 2
    assert "HOST:WORKERS" in result.stderr


@pytest.fixture
def lab():
    require_namespaces()
    with Netlab(nodes=3, local=1, rate="1gbit") as lab:
        yield lab


def test_sound_cluster(lab):
    result = lab.run(DOCTOR, env=ENVIRONMENT, timeout=LIMIT)
    assert result.exit_code == 0, result.ranks
    said = result.ranks[0].stdout
    assert "all is well" in said
    for node, address in (("node0", "10.0.0.1"), ("node1", "10.0.0.2"), ("node2", "10.0.0.3")):
        assert f"{node}: {address}, workers: 1" in said
    assert not result.ranks[1].stdout  # one speaks for all


def test_sick_cluster(lab, tmp_path):
    """node1: another Keras, 127.0.1.1 in /etc/hosts, few ports, another setting, no way to node2."""
    (tmp_path / "keras-9.9.9.dist-info").mkdir()
    (tmp_path / "keras-9.9.9.dist-info" / "METADATA").write_text("Name: keras\nVersion: 9.9.9\n")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node1\n")
    doctor = shlex.join(DOCTOR)
    script = f"""
    [ "$HOROVOD_RANK" = 1 ] || exec {doctor}
    mount --bind {shlex.quote(str(tmp_path / "hosts"))} /etc/hosts
    echo 40000 40009 > /proc/sys/net/ipv4/ip_local_port_range
    PATH="$PATH:/usr/sbin:/sbin" ip route add unreachable 10.0.0.3
    unset HOROVOD_GLOO_IFACE
    export HOROVOD_CYCLE_TIME=7 PYTHONPATH={shlex.quote(str(tmp_path))}:"$PYTHONPATH"
    exec {doctor}
    """
    result = lab.run(["sh", "-c", script], env=ENVIRONMENT, timeout=LIMIT)
    said = result.ranks[0].stdout
    assert [rank.exit_code for rank in result.ranks] == [1, 1, 1], result.ranks
    keras = facts.versions()["keras"]
    for sentence in (
        f"fail  versions: keras is 9.9.9 on node1, {keras} on node0",
        f"cure: on node1: pip install keras=={keras}",
        "fail  settings: HOROVOD_CYCLE_TIME is 7 on node1, not set on node0",
        "fail  names: node1: its own name node1 resolves to 127.0.1.1, which other machines",
        "cure: in /etc/hosts of node1 write `10.0.0.2 node1` instead of `127.0.1.1 node1`",
        "fail  ports: node1: only ",
        "fail  connections: node1 cannot connect to node2 at 10.0.0.3",
        "ok    clocks",
        "ok    Horovod",
    ):
        assert sentence in said, said
