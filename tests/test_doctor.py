"""tss doctor finds each planted fault, and none where there is none."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading

import pytest
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from tests.lab_help import ENVIRONMENT, require_namespaces
from tf_sparse_strategy.cluster import Netlab, facts
from tf_sparse_strategy.cluster.calls import Call, Listener, call, call_all, clock_offset
from tf_sparse_strategy.cluster.checks import CHECKS, examine, horovod_address
from tf_sparse_strategy.cluster.exchange import ExchangeError, ThroughRendezvous
from tf_sparse_strategy.cluster.remote import Host, parse_hosts

DOCTOR = [sys.executable, "-m", "tf_sparse_strategy.cli", "doctor"]
LIMIT = 200  # seconds for what takes a tenth of it on an idle machine


# ---- each check, on made-up reports ----


def report(rank: int = 0, /, **changes) -> dict:
    """A sound machine's."""
    address = f"10.0.0.{rank + 1}"
    sound = {
        "rank": rank,
        "host": f"vm{rank}",
        "name": f"vm{rank}",
        "name_address": address,
        "name_is_here": True,
        "interfaces": {"lo": "127.0.0.1", "eth0": address},
        "interface": "eth0",
        "launched": True,
        "workers": 2,
        "versions": {"keras": "3.15.1", "horovod": "0.28.1+tss.c0", "tf_keras": None},
        "settings": {"HOROVOD_CYCLE_TIME": "1"},
        "runtime": {"gloo": True, "nccl": False, "gpus": 0},
        "address": address,
        "ports": [32, 32, None],
        "calls": [{"rank": 1 - rank, "error": None, "clock": 0.2, "uncertainty": 0.001}],
    }
    return sound | changes


def test_nothing_is_found_on_sound_machines():
    assert not any(examine([report(0), report(1)]).values())
    assert not any(examine([report(0, calls=[])]).values())


GPUS = {"gloo": True, "nccl": True, "gpus": 2}
BARE = {"keras": "3.15.1", "horovod": None, "tf_keras": None}
# (check, severity, what is said of vm1, the cure, what is wrong with vm1's report)
ILLS = [
    ("Horovod", "fail", "not installed", "tools/horovod/build.py", {"versions": BARE}),
    ("Horovod", "fail", "not load: no xla", "make setup", {"runtime": {"error": "no xla"}}),
    (
        "Horovod",
        "warn",
        "lacks the fixes",
        "make setup",
        {"versions": BARE | {"horovod": "0.28.1"}},
    ),
    ("Horovod", "fail", "without Gloo", "make setup", {"runtime": GPUS | {"gloo": False}}),
    ("Horovod", "warn", "without NCCL", "--gpu", {"runtime": GPUS | {"nccl": False}}),
    ("Horovod", "fail", "2 workers for 1 GPUs", "start 1", {"runtime": GPUS | {"gpus": 1}}),
    (
        "versions",
        "fail",
        "keras is 3.14.0 on vm1, 3.15.1 on vm0",
        "on vm1: pip install keras==3.15.1",
        {"versions": report()["versions"] | {"keras": "3.14.0"}},
    ),
    (
        "versions",
        "fail",
        "tf_keras is 2.20.1 on vm1, missing on vm0",
        "install the same",
        {"versions": report()["versions"] | {"tf_keras": "2.20.1"}},
    ),
    ("settings", "fail", "CYCLE_TIME is not set on vm1", "before the launcher", {"settings": {}}),
    (
        "names",
        "fail",
        "HOROVOD_GLOO_IFACE=ens5 has no IPv4 address; vm1 has lo (127.0.0.1), eth0 (10.0.0.2)",
        "export HOROVOD_GLOO_IFACE=eth0",
        {"interface": "ens5"},
    ),
    ("names", "fail", "HOROVOD_GLOO_IFACE=lo is 127.0.0.1", "=eth0", {"interface": "lo"}),
    (
        "names",
        "warn",
        "resolves to 127.0.1.1, which other machines cannot reach; harmless while",
        "write `10.0.0.2 vm1` instead of `127.0.1.1 vm1`",
        {"name_address": "127.0.1.1"},
    ),
    (
        "names",
        "fail",
        "resolves to 127.0.1.1, which other",
        "or export HOROVOD_GLOO_IFACE=eth0",
        {"name_address": "127.0.1.1", "interface": None},
    ),
    (
        "names",
        "fail",
        "resolves to nothing",
        "write `10.0.0.2 vm1`",
        {"name_address": None, "name_is_here": False, "interface": None},
    ),
    (
        "names",
        "fail",
        "resolves to 10.9.9.9, which is not its own",
        "write `10.0.0.2 vm1`",
        {"name_address": "10.9.9.9", "name_is_here": False, "interface": None},
    ),
    (
        "ports",
        "fail",
        "only 3 of 32 TCP ports could be opened on 10.0.0.2 (Address already in use)",
        "ip_local_port_range",
        {"ports": [3, 32, "Address already in use"]},
    ),
    (
        "connections",
        "fail",
        "vm1 cannot connect to vm0 at 10.0.0.1 (timed out)",
        "security group",
        {"calls": [{"rank": 0, "error": "timed out", "clock": 0.0, "uncertainty": 0.0}]},
    ),
]


@pytest.mark.parametrize(("check", "severity", "text", "fix", "changes"), ILLS)
def test_each_ill_is_found_and_no_other(check, severity, text, fix, changes):
    found = examine([report(0), report(1, **changes)])
    if check == "Horovod":
        found.pop("versions")  # a Horovod that is not ours is also another one
    [finding] = found.pop(check)
    assert finding.severity == severity
    assert text in finding.text and "vm1" in finding.text
    assert fix in finding.fix
    assert not any(found.values())


def test_keras_runs_on_tensorflow():
    jax = [report(rank, settings={"KERAS_BACKEND": "jax"}) for rank in range(2)]
    findings = examine(jax)["settings"]
    assert [finding.fix for finding in findings] == ["unset KERAS_BACKEND"] * 2
    assert not examine([report(0, settings={"KERAS_BACKEND": "tensorflow"})])["settings"]


def test_every_check_has_an_ill():
    assert {ill[0] for ill in ILLS} == set(CHECKS) - {"clocks"}


def test_a_machine_of_its_own_may_use_loopback():
    alone = report(0, interface="lo", name_address="127.0.1.1", calls=[])
    twin = report(0, host="127.0.0.1", rank=1, interface="lo", name_address="127.0.1.1", calls=[])
    assert not any(examine([alone]).values())
    assert not any(examine([alone, twin]).values())


def test_horovodrun_needs_an_interface_of_one_name():
    there = {"interface": None, "launched": False}
    other = report(1, interfaces={"lo": "127.0.0.1", "ens5": "10.0.0.2"}, **there)
    [finding] = examine([report(0, **there), other])["names"]
    assert "same name on all hosts (vm0: eth0; vm1: ens5)" in finding.text
    assert not examine([report(0, **there), report(1, **there)])["names"]


@pytest.mark.parametrize(
    ("clock", "uncertainty", "found"),
    [(0.9, 0, 0), (1.1, 0, 1), (-1.1, 0, 1), (1.1, 0.2, 0), (-3600, 0.2, 1)],
)
def test_clocks_may_differ_by_a_second(clock, uncertainty, found):
    called = [{"rank": 1, "error": None, "clock": clock, "uncertainty": uncertainty}]
    findings = examine([report(0, calls=called), report(1)])["clocks"]
    assert len(findings) == found
    for finding in findings:
        assert finding.severity == "warn"
        assert f"{abs(clock):.1f} s {'ahead of' if clock > 0 else 'behind'}" in finding.text
        assert "set-ntp true" in finding.fix


@pytest.mark.parametrize(
    ("changes", "several", "address"),
    [
        ({}, True, "10.0.0.1"),
        ({"interface": "lo"}, False, "127.0.0.1"),
        ({"interface": "lo", "name_address": "127.0.0.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "10.0.0.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "127.0.1.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "127.0.1.1"}, False, "127.0.1.1"),
        ({"interface": None, "name_address": "10.9.9.9", "name_is_here": False}, True, "10.0.0.1"),
        (
            {"interface": None, "name_address": None, "name_is_here": False, "interfaces": {}},
            True,
            None,
        ),
    ],
)
def test_horovods_address(changes, several, address):
    assert horovod_address(report(0, **changes), several) == address


# ---- what it finds out, for real ----


@pytest.mark.parametrize(("offset", "way"), [(0.0, 0.0), (-5.0, 0.1), (7200.0, 3.0)])
def test_clock_offset_of_equal_ways_is_exact(offset, way):
    found, uncertainty = clock_offset(1000.0, 1000.0 + 2 * way, 1000.0 + way + offset)
    assert found == pytest.approx(offset)
    assert uncertainty == pytest.approx(way)


def test_clock_offset_of_unequal_ways_is_within_its_uncertainty():
    found, uncertainty = clock_offset(1000.0, 1001.0, 1000.9)  # 0.9 s there, 0.1 s back, same clock
    assert abs(found) <= uncertainty


def test_calls_reach_listeners_and_their_clock():
    with Listener() as one, Listener() as other:
        found = call_all({3: ("127.0.0.1", one.port), 5: ("127.0.0.1", other.port)})
    assert [call.rank for call in found] == [3, 5]
    for answered in found:
        assert answered.error is None
        assert abs(answered.clock) <= answered.uncertainty + 0.001  # one clock


def test_a_call_to_nobody_says_why():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert call(1, "127.0.0.1", port) == Call(1, "[Errno 111] Connection refused")
    assert call_all({}) == []


def test_interfaces_and_own_addresses():
    assert facts.interfaces()["lo"] == "127.0.0.1"
    assert facts.is_own("127.0.0.1")
    assert not facts.is_own("192.0.2.123")  # TEST-NET-1, RFC 5737


def test_settings_of_one_worker_are_left_to_it():
    own = ["HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_GLOO_IFACE", "HOROVOD_LOG_LEVEL", "PATH"]
    shared = ["HOROVOD_CYCLE_TIME", "HOROVOD_GLOO_TIMEOUT_SECONDS", "KERAS_BACKEND"]
    assert not [name for name in own if facts._SHARED.fullmatch(name)]
    assert [name for name in shared if facts._SHARED.fullmatch(name)] == shared


def test_hosts_are_horovodruns():
    assert parse_hosts("vm1:4, 10.0.0.2:1") == [Host("vm1", 4), Host("10.0.0.2", 1)]


@pytest.mark.parametrize("text", ["vm1", "vm1:", "vm1:0", "vm1:4,,vm2:4", "a b:1"])
def test_other_hosts_are_refused(text):
    with pytest.raises(ValueError, match="HOST:WORKERS; write e.g. -H vm1:4,vm2:4"):
        parse_hosts(text)


@pytest.fixture
def rendezvous():
    """The environment of two ranks, but for their number."""
    slots = [SlotInfo("localhost", rank, rank, 0, 2, 2, 1) for rank in range(2)]
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, verbose=0)
    server.init(slots)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield {
        "HOROVOD_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_address[1]),
    }
    server.shutdown()
    thread.join()
    server.server_close()


def test_ranks_exchange_values_through_the_launchers_store(rendezvous):
    one, two = (ThroughRendezvous(rendezvous | {"HOROVOD_RANK": rank}, 0.2) for rank in "01")
    assert one.all_gather({"of": 0}) == [{"of": 0}, None]  # rank 1 is late
    assert two.all_gather({"of": 1}) == [{"of": 0}, {"of": 1}]
    assert two.all_gather("second") == [None, "second"]
    assert one.all_gather("round") == ["round", "second"]


def test_a_store_out_of_reach_is_named(rendezvous):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    lost = rendezvous | {"HOROVOD_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_PORT": port}
    with pytest.raises(ExchangeError, match=f"rank 1 cannot reach .* 127.0.0.1:{port}.*allow TCP"):
        ThroughRendezvous(lost).all_gather(0)


# ---- whole examinations ----


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
