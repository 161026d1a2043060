"""What the doctor finds out on a machine and between machines, for real."""

import socket
import subprocess
import threading
import time

import pytest
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from tf_sparse_strategy.cluster import facts, remote
from tf_sparse_strategy.cluster.calls import Call, Listener, call, call_all, clock_offset
from tf_sparse_strategy.cluster.exchange import ExchangeError, ThroughRendezvous
from tf_sparse_strategy.cluster.remote import Host, Patients, parse_hosts


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
        assert abs(answered.clock) <= answered.uncertainty + 1e-6  # one clock


def test_a_caller_that_is_held_up_is_not_answered_before(monkeypatch):
    """Between connecting and asking: the answer is to the question, not to the connection."""
    connect = socket.create_connection

    def held_up(*args, **kwargs):
        line = connect(*args, **kwargs)
        time.sleep(0.1)
        return line

    monkeypatch.setattr(socket, "create_connection", held_up)
    with Listener() as one:
        answered = call(0, "127.0.0.1", one.port)
    assert abs(answered.clock) <= answered.uncertainty + 1e-6


def test_a_caller_that_asks_nothing_keeps_nobody_waiting():
    with Listener() as one, socket.create_connection(("127.0.0.1", one.port)):
        begin = time.monotonic()
        assert call(0, "127.0.0.1", one.port).error is None
        assert time.monotonic() - begin < 2


def test_a_call_to_nobody_says_why():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert call(1, "127.0.0.1", port) == Call(1, "[Errno 111] Connection refused")
    assert call_all({}) == []


def test_interfaces_and_own_addresses():
    assert facts.interfaces()["lo"] == "127.0.0.1"
    assert facts.is_own("127.0.0.1")
    assert not facts.is_own("192.0.2.123")  # TEST-NET-1, RFC 5737


def test_a_library_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(facts, "_PROBE_SECONDS", 0.1)  # importing TensorFlow takes longer
    assert facts.runtime() == {"error": "importing TensorFlow and Horovod takes longer than 0.1 s"}


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


def test_no_process_is_left_when_a_host_cannot_be_started(monkeypatch):
    started = []

    def start(rank, host):
        if host.name == "vm2":
            raise ExchangeError("no ssh")
        started.append(subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(remote, "_start", start)
    with pytest.raises(ExchangeError, match="no ssh"):
        Patients([Host("localhost", 1), Host("vm2", 1)])
    assert [process.returncode for process in started] == [-9]


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
