"""netlab: real jobs on real namespaces, how they end, and what is made to go wrong in them."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from tests.lab_help import (
    ENVIRONMENT,
    PATIENCE,
    ROOT,
    Marker,
    first_rank,
    require_namespaces,
    shell,
    wait_until,
)
from tf_sparse_strategy.cluster import Fault, Netlab

WORKER = ROOT / "tests" / "multiprocess" / "netlab_worker.py"


@pytest.fixture(scope="module")
def machine():
    require_namespaces()


@pytest.fixture
def lab(machine):
    """Two nodes with one worker each."""
    with Netlab(nodes=2, local=1, rate="1gbit") as lab:
        yield lab


@pytest.fixture
def marker(monkeypatch) -> Marker:
    return Marker(monkeypatch)


@pytest.mark.parametrize(
    "arguments",
    [{"nodes": 0}, {"nodes": 251}, {"local": 0}, {"rate": "soon"}, {"buffer": 0}, {"buffer": 200}],
)
def test_wrong_arguments_are_named(arguments):
    [(name, value)] = arguments.items()
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        Netlab(**arguments)


# ---- a real job ----

MEGABYTES, REPETITIONS, RATE = 4, 3, 100e6


@pytest.fixture(scope="module")
def job(machine):
    """Two nodes with two workers each sum a vector: (result, each rank's report)."""
    with Netlab(nodes=2, local=2, rate="100mbit") as lab:
        command = [sys.executable, str(WORKER), str(MEGABYTES), str(REPETITIONS)]
        result = lab.run(command, env=ENVIRONMENT, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    return result, [json.loads(rank.stdout) for rank in result.ranks]


def test_horovod_reduces_between_nodes(job):
    _, reports = job
    assert [report["sum"] for report in reports] == [1 + 2 + 3 + 4] * 4
    assert [report["rank"] for report in reports] == [0, 1, 2, 3]
    assert [report["local_rank"] for report in reports] == [0, 1, 0, 1]


def test_nodes_have_names_and_addresses(job):
    result, reports = job
    assert [report["host"] for report in reports] == ["node0", "node0", "node1", "node1"]
    assert [rank.node for rank in result.ranks] == ["node0", "node0", "node1", "node1"]
    assert [report["hosts_address"] for report in reports] == ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2


def test_bytes_reported_are_bytes_sent(job):
    """A ring in rank order crosses each link once in each direction."""
    result, _ = job
    bytes_sent = 2 * 3 / 4 * MEGABYTES * 10**6 * REPETITIONS
    for link in result.links:
        for carried in (link.sent, link.received):
            assert 1 <= carried / bytes_sent < 1.15, result.links  # headers, acknowledgements


def test_the_link_has_its_rate_and_no_more(job):
    result, reports = job
    seconds = max(report["seconds"] for report in reports)
    rate = 8 * 2 * 3 / 4 * MEGABYTES * 10**6 * REPETITIONS / seconds
    assert RATE / 4 < rate < RATE, f"{rate / 1e6:.1f} Mbit/s"


def test_a_congestion_control_that_the_kernel_lacks_is_named(machine):
    with pytest.raises(ValueError, match="tcp.*cubicle"):
        Netlab(tcp="cubicle")


# Prints what the sockets of both ends use, of a node's connections to itself and to the other.
CONGESTION_CONTROLS = """
import socket, time
def connected(host):
    while True:
        try:
            return socket.create_connection((host, 5000))
        except ConnectionRefusedError:
            time.sleep(0.01)
with socket.create_server(("", 5000)) as server:
    ends = [connected(host) for host in ("node0", "node1")] + [server.accept()[0] for _ in range(2)]
    names = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) for end in ends]
    print(*(name.strip(b"\\0").decode() for name in names))
"""


@pytest.mark.parametrize("tcp", ["cubic", "reno"])
def test_connections_have_the_congestion_control_asked_for(machine, tcp):
    """Whatever that of the machine is, and whether or not it allows another one for a whole namespace."""
    with Netlab(nodes=2, local=1, tcp=tcp) as lab:
        result = lab.run([sys.executable, "-c", CONGESTION_CONTROLS], timeout=60)
    assert [rank.stdout.split() for rank in result.ranks] == [[tcp] * 4] * 2


CONNECTED = """
import socket, time

def connected():
    while True:
        try:
            return socket.create_connection(("node0", 7000))
        except ConnectionRefusedError:
            time.sleep(0.05)
"""

FAN = CONNECTED + """
import concurrent.futures, json, os
size, rank = 10**6, int(os.environ["HOROVOD_RANK"])

def receive(line):
    line.makefile("rb").read(size)
    line.send(b"x")

def send(line):
    line.sendall(bytes(size))
    line.recv(1)

if rank == 0:
    server = socket.create_server(("node0", 7000))
    lines = [server.accept()[0] for _ in range(2)]
    rates = []
    for direction in (receive, send):
        begin = time.monotonic()
        for line in lines:
            line.send(b"x")
        with concurrent.futures.ThreadPoolExecutor() as threads:
            list(threads.map(direction, lines))
        rates.append(2 * size * 8 / (time.monotonic() - begin))
    print(json.dumps(rates))
else:
    line = connected()
    for direction in (send, receive):
        line.recv(1)
        direction(line)
"""


def test_both_directions_of_a_link_are_limited(machine):
    """Two nodes send to one, which passes one link; then it sends to both."""
    with Netlab(nodes=3, local=1, rate="20mbit") as lab:
        result = lab.run([sys.executable, "-c", FAN], timeout=100)
    rates = json.loads(result.ranks[0].stdout)
    assert all(rate < 1.05 * 20e6 for rate in rates), rates


FAN_IN = CONNECTED + """
import os
packets, rank = 600, int(os.environ["HOROVOD_RANK"])
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if rank == 0:
    line.bind(("node0", 7000))
    line.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE: nothing is lost here
    line.settimeout(5)
    server = socket.create_server(("node0", 7000))
    starts = [server.accept()[0] for _ in range(2)]
    for start in starts:
        start.send(b"x")
    received = 0
    try:
        while received < 2 * packets:
            line.recv(2000)
            received += 1
    except TimeoutError:
        pass
    print(received)
else:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)  # waits for its own link, loses nothing
    line.connect(("node0", 7000))
    connected().recv(1)
    for _ in range(packets):
        line.send(bytes(1000))
"""


@pytest.mark.parametrize(("buffer", "least", "most"), [(0.01, 600, 1080), (1.0, 1200, 1200)])
def test_a_port_holds_its_buffer_and_loses_what_is_beyond(machine, buffer, least, most):
    """Two nodes send 600 kB each to one, as fast as their links carry it: twice what its link does."""
    with Netlab(nodes=3, local=1, rate="20mbit", buffer=buffer) as lab:
        result = lab.run([sys.executable, "-c", FAN_IN], timeout=100)
    assert result.exit_code == 0, [rank.stderr for rank in result.ranks]
    assert least <= int(result.ranks[0].stdout) <= most


# ---- how jobs end ----


def test_the_exit_code_is_that_of_the_first_failure(lab):
    result = lab.run(first_rank("sleep 1; exit 3", "exit 5"), timeout=PATIENCE)
    assert [rank.exit_code for rank in result.ranks] == [3, 5]
    assert result.exit_code == 5
    assert result.killed == []
    assert result.ranks[0].seconds >= 1


def test_output_is_kept_by_rank(lab):
    result = lab.run(shell("echo to out $HOROVOD_RANK; echo to err >&2"), timeout=PATIENCE)
    assert [rank.stdout for rank in result.ranks] == ["to out 0\n", "to out 1\n"]
    assert result.ranks[1].stderr == "to err\n"


def test_others_have_the_grace_to_end(lab):
    result = lab.run(first_rank("sleep 600", "exit 5"), grace=0.5, timeout=100)
    assert result.exit_code == 5
    assert result.killed == [0]
    assert result.ranks[0].exit_code == 128 + signal.SIGTERM


def test_a_timeout_ends_a_job(marker, lab):
    idle = marker.processes()
    deaf = shell("trap '' TERM; sleep 600 & wait; sleep 600")
    result = lab.run(deaf, timeout=3)
    assert result.exit_code == 124
    assert result.killed == [0, 1]
    assert {rank.exit_code for rank in result.ranks} == {128 + signal.SIGKILL}
    assert marker.processes() == idle


def test_a_job_leaves_no_process_on_the_nodes(marker, lab):
    idle = marker.processes()
    assert lab.run(shell("sleep 600 & exit 0"), timeout=PATIENCE).exit_code == 0
    assert marker.processes() == idle


def test_the_next_job_finds_the_nodes_in_order(lab):
    script = "import socket; socket.socket(2, 2).sendto(bytes(1000), ('node0', 7000)); exit(1)"
    first = lab.run([sys.executable, "-c", script], timeout=PATIENCE)
    assert first.exit_code == 1
    assert first.links[1].sent > 1000
    second = lab.run(["true"], timeout=PATIENCE)
    assert second.exit_code == 0
    assert second.links[1].sent < 1000  # its own bytes only


def test_a_missing_program_is_named(lab):
    result = lab.run(["no_such_program"], timeout=PATIENCE)
    assert result.exit_code == 127
    assert "no_such_program" in result.ranks[0].stderr


# ---- faults ----


def test_kill_kills_one_rank(lab):
    fault = Fault("kill", 1, seconds=0.5)
    result = lab.run(["sleep", "2"], faults=[fault], timeout=PATIENCE)
    assert [rank.exit_code for rank in result.ranks] == [0, 128 + signal.SIGKILL]
    assert result.exit_code == 128 + signal.SIGKILL
    assert 0.5 <= result.ranks[1].seconds < 2 <= result.ranks[0].seconds


def test_a_fault_after_the_end_is_told(lab):
    late, early = Fault("kill", 1, seconds=60), Fault("cut", 1, seconds=0)
    result = lab.run(["true"], faults=[late, early], timeout=PATIENCE)
    assert result.exit_code == 0 and result.missed == [late]


def test_stop_stops_one_rank(lab):
    fault = Fault("stop", 1, seconds=0.5)
    result = lab.run(shell("sleep 2; exit 7"), faults=[fault], grace=0.5, timeout=100)
    assert result.ranks[0].exit_code == result.exit_code == 7
    assert result.killed == [1]


def test_a_stopped_rank_can_go_on(lab):
    with lab.start(["sleep", "3"]) as job:
        job.signal(0, signal.SIGSTOP)
        assert wait_until(lambda: job.running() == [0])
        time.sleep(0.5)
        assert job.running() == [0]
        job.signal(0, signal.SIGCONT)
        assert wait_until(lambda: not job.running())


CHATTER = """
import os, pathlib, socket, sys, time
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["HOROVOD_RANK"] == "0":
    end.bind(("node0", 7000))
    for count in range(1, 1 << 30):
        end.recv(100)
        pathlib.Path(sys.argv[1]).write_text(str(count))
while True:
    end.sendto(b"x", ("node0", 7000))
    time.sleep(0.02)
"""


def test_cut_loses_what_a_node_sends_until_mended(lab, tmp_path):
    heard = tmp_path / "heard"
    heard.write_text("0")

    def count() -> int:
        return int(heard.read_text() or -1)

    with lab.start([sys.executable, "-c", CHATTER, str(heard)]) as job:
        assert wait_until(lambda: count() > 0)
        lab.cut(1)
        time.sleep(1)
        before = count()
        time.sleep(0.5)
        assert count() == before
        assert job.running() == [0, 1]  # nobody is told
        lab.mend(1)
        assert wait_until(lambda: count() > before)


def test_cut_is_inflicted_in_time(lab):
    script = "import socket, time; time.sleep(2); socket.create_connection(('node1', 22), 1)"
    command = first_rank(f'exec "{sys.executable}" -c "{script}"', "sleep 3")
    refused = lab.run(command, timeout=PATIENCE)
    assert "ConnectionRefusedError" in refused.ranks[0].stderr  # node1 answers
    lost = lab.run(command, faults=[Fault("cut", 1, seconds=0)], timeout=PATIENCE)
    assert "ConnectionRefusedError" not in lost.ranks[0].stderr
    assert "Error" in lost.ranks[0].stderr
