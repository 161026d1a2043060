"""netlab: real jobs on real namespaces; what goes wrong in them, and what is left of them."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tf_sparse_strategy.cluster import Fault, Netlab, NetlabError, check_machine
from tf_sparse_strategy.cluster.rate import parse_rate, shaper

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKER = ROOT / "tests" / "multiprocess" / "netlab_worker.py"
PYTHONPATH = os.pathsep.join([str(ROOT), *sys.path])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "CUDA_VISIBLE_DEVICES": "-1"}
PATIENCE = 20  # seconds for what takes a fraction of one on an idle machine


@pytest.fixture(scope="module")
def machine():
    try:
        check_machine()
    except NetlabError as error:
        pytest.skip(str(error))


@pytest.fixture
def lab(machine):
    """Two nodes with one worker each."""
    with Netlab(nodes=2, local=1, rate="1gbit") as lab:
        yield lab


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def rank_is(rank: int, then: str, otherwise: str) -> list[str]:
    return shell(f'if [ "$HOROVOD_RANK" = {rank} ]; then {then}; else {otherwise}; fi')


def wait_until(condition, seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Marker:
    """A word in the environment of whatever a lab starts, by which it is found from outside."""

    def __init__(self, monkeypatch):
        self._word = uuid.uuid4().hex
        monkeypatch.setenv("NETLAB_TEST", self._word)

    def processes(self) -> set[int]:
        return {pid for pid in self._pids() if self._carries(pid)}

    def namespaces(self) -> set[str]:
        """The networks in which marked processes are, besides our own."""
        return {network_of(pid) for pid in self.processes()} - {network_of("self"), None}

    def _pids(self):
        return [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]

    def _carries(self, pid: int) -> bool:
        try:
            return self._word.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # ended meanwhile, or a zombie


def network_of(pid) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


@pytest.fixture
def marker(monkeypatch) -> Marker:
    return Marker(monkeypatch)


# ---- pure parts ----


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 2 * 10**8), ("1.5Gbit", 15 * 10**8), (" 64kbit", 64000)]
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "200", "-1mbit", "0gbit", "200 mbit", "10MB"])
def test_other_texts_are_no_rates(text):
    with pytest.raises(ValueError, match="write e.g. 200mbit"):
        parse_rate(text)


@pytest.mark.parametrize(("rate", "burst"), [(64000, 16384), (2 * 10**8, 25000), (10**9, 125000)])
def test_a_link_stores_a_millisecond_and_at_least_a_packet(rate, burst):
    assert shaper(rate) == f"tbf rate {rate}bit burst {burst} latency 50ms"


def test_faults_are_parsed():
    assert Fault.parse("kill", "3@20") == Fault("kill", 3, 20.0)
    assert Fault.parse("cut", "0@0.5") == Fault("cut", 0, 0.5)


@pytest.mark.parametrize("text", ["3", "3@", "@3", "-1@3", "a@b", "1@2@3"])
def test_other_texts_are_no_faults(text):
    with pytest.raises(ValueError, match="is not NODE@SECONDS: write e.g. --cut 1@20"):
        Fault.parse("cut", text)


def test_faults_name_what_exists():
    Fault("kill", 3, 1).check(nodes=2, ranks=4)
    with pytest.raises(ValueError, match="there is no rank 4; ranks are 0 to 3"):
        Fault("stop", 4, 1).check(nodes=2, ranks=4)
    with pytest.raises(ValueError, match="there is no node 2; nodes are 0 to 1"):
        Fault("cut", 2, 1).check(nodes=2, ranks=4)


@pytest.mark.parametrize(
    "arguments", [{"nodes": 0}, {"nodes": 251}, {"local": 0}, {"rate": "soon"}]
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


# ---- how jobs end ----


def test_the_exit_code_is_that_of_the_first_failure(lab):
    result = lab.run(rank_is(0, "sleep 1; exit 3", "exit 5"), timeout=PATIENCE)
    assert [rank.exit_code for rank in result.ranks] == [3, 5]
    assert result.exit_code == 5
    assert result.killed == []
    assert result.ranks[0].seconds >= 1


def test_output_is_kept_by_rank(lab):
    result = lab.run(shell("echo to out $HOROVOD_RANK; echo to err >&2"), timeout=PATIENCE)
    assert [rank.stdout for rank in result.ranks] == ["to out 0\n", "to out 1\n"]
    assert result.ranks[1].stderr == "to err\n"


def test_others_have_the_grace_to_end(lab):
    result = lab.run(rank_is(0, "sleep 600", "exit 5"), grace=0.5, timeout=100)
    assert result.exit_code == 5
    assert result.killed == [0]
    assert result.ranks[0].exit_code == 128 + signal.SIGTERM


def test_a_timeout_ends_a_job(marker, lab):
    idle = marker.processes()
    deaf = shell("trap '' TERM; sleep 600 & wait; sleep 600")
    result = lab.run(deaf, timeout=0.5)
    assert result.exit_code == 124
    assert result.killed == [0, 1]
    assert {rank.exit_code for rank in result.ranks} == {128 + signal.SIGKILL}
    assert marker.processes() == idle


def test_a_job_leaves_no_process_on_the_nodes(marker, lab):
    idle = marker.processes()
    assert lab.run(shell("sleep 600 & exit 0"), timeout=PATIENCE).exit_code == 0
    assert marker.processes() == idle


def test_the_next_job_finds_the_nodes_in_order(lab):
    assert lab.run(["false"], timeout=PATIENCE).exit_code == 1
    assert lab.run(["true"], timeout=PATIENCE).exit_code == 0


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


def test_stop_stops_one_rank(lab):
    fault = Fault("stop", 1, seconds=0.5)
    result = lab.run(shell("sleep 2; exit 7"), faults=[fault], grace=0.5, timeout=100)
    assert result.ranks[0].exit_code == result.exit_code == 7
    assert result.killed == [1]


def test_a_stopped_rank_can_go_on(lab):
    with lab.start(["sleep", "0.5"]) as job:
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
        time.sleep(0.2)
        before = count()
        time.sleep(0.5)
        assert count() == before
        assert job.running() == [0, 1]  # nobody is told
        lab.mend(1)
        assert wait_until(lambda: count() > before)


def test_cut_is_inflicted_in_time(lab):
    script = "import socket, time; time.sleep(0.5); socket.create_connection(('node1', 22), 1)"
    command = rank_is(0, f'exec "{sys.executable}" -c "{script}"', "sleep 1")
    refused = lab.run(command, timeout=PATIENCE)
    assert "ConnectionRefusedError" in refused.ranks[0].stderr  # node1 answers
    lost = lab.run(command, faults=[Fault("cut", 1, seconds=0)], timeout=PATIENCE)
    assert "ConnectionRefusedError" not in lost.ranks[0].stderr
    assert "Error" in lost.ranks[0].stderr


# ---- nothing is left, nothing is shared ----


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
    talk = rank_is(0, serve, call)
    with Netlab(nodes=2, local=1) as one, Netlab(nodes=2, local=1) as other:
        idle = other.run(["true"], timeout=PATIENCE)
        assert one.run(talk, timeout=PATIENCE).exit_code == 0
        assert other.traffic() == idle.links  # nothing of it went here
        assert one.traffic()[0].received > 0
        with concurrent.futures.ThreadPoolExecutor() as threads:
            results = list(threads.map(lambda lab: lab.run(talk, timeout=PATIENCE), (one, other)))
    assert [result.exit_code for result in results] == [0, 0]


# ---- machines that cannot ----


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
