"""The watchdog's parts: the verdict by what is known, the user's line, the door to strangers."""

import contextlib
import math
import pathlib
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
import tensorflow as tf

from tf_sparse_strategy.call_site import CallSites
from tf_sparse_strategy.topology import Topology
from tf_sparse_strategy.traffic import Bytes
from tf_sparse_strategy.watchdog import Watchdog
from tf_sparse_strategy.watchdog.channel import Channel
from tf_sparse_strategy.watchdog.horovod_errors import is_horovods
from tf_sparse_strategy.watchdog.verdict import End, Worker, verdict
from tf_sparse_strategy.watchdog.waits import Waits

SILENCE, STALL = 45.0, 1800.0
X, Y = "gradients.all_reduce_sum.step.0", "value.all_gather.eager"
SHUT_DOWN = End(error="UnknownError: Horovod has been shut down", consequence=True)


def judge(*workers, silence=SILENCE, stall=STALL):
    return verdict(workers, silence, stall)


def worker(rank, **known):
    return Worker(rank, f"vm{rank}", line=f"train.py:{rank}", **known)


# ---- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workers",
    [
        [worker(0), worker(1), worker(2)],
        [worker(0), worker(1, silent=44.9)],
        [worker(0, waits={X: 44.9}), worker(1)],
        # However long a message takes, all that wait in it are well.
        [worker(0, waits={X: 1e9}), worker(1, waits={X: 1e6})],
        [worker(0, waits={X: 1e9, Y: 3}), worker(1, waits={X: 1e6})],
        # Not all programs end at the same moment, and whoever has ended need not answer.
        [worker(0), worker(1, end=End(), silent=1e9)],
        [worker(0, end=End()), worker(1, end=End())],
        # Nobody is known to have caused it yet.
        [worker(0, end=SHUT_DOWN), worker(1, silent=3)],
        # What it computes is its own affair.
        [worker(0, waits={X: 44}), worker(1, end=End(code="exit code 3"))],
    ],
)
def test_nothing_is_wrong(workers):
    assert judge(*workers) is None


def test_a_worker_that_died():
    found = judge(worker(0), worker(1, end=End(said=False)), worker(2))
    assert found.final and not found.stall
    assert found.text.startswith("rank 1 (vm1) ended without a word")


def test_an_error_of_its_own():
    found = judge(worker(0), worker(1, end=End(error="ValueError: bad row\n  at train.py:3")))
    assert found.final
    assert found.text == "rank 1 (vm1) raised ValueError: bad row\n  at train.py:3"


def test_who_raised_comes_before_who_suffered():
    died = worker(2, end=End(said=False))
    raised = worker(3, end=End(error="KeyError: 'x'"))
    assert "rank 2 (vm2) ended without" in judge(worker(0), worker(1, end=SHUT_DOWN), died).text
    assert "rank 3 (vm3) raised" in judge(worker(0, end=SHUT_DOWN), died, raised).text


def test_a_worker_that_is_silent():
    stopped = judge(worker(0), worker(1, silent=45), worker(2))
    assert stopped.final and "rank 1 (vm1) did not answer for 45 s, though the" in stopped.text
    cut = judge(worker(0), *(worker(r, silent=50, reachable=False) for r in (1, 2)))
    assert cut.final and "ranks 1 (vm1), 2 (vm2) did not answer for 50 s, nor does" in cut.text


def test_a_worker_that_ended_while_others_called():
    found = judge(worker(0, end=SHUT_DOWN), worker(1, end=End()), worker(2))
    assert found.final and found.text.startswith("rank 1 (vm1) ended the program")


def test_a_worker_that_ended_while_others_wait_for_it():
    """Horovod tells them nothing where its end is held up."""
    found = judge(worker(0, waits={X: 45}), worker(1, end=End()), worker(2, waits={X: 46}))
    assert found.final and found.text.startswith("rank 1 (vm1) ended the program, without")


def test_a_worker_that_nobody_watches_any_more_has_not_ended():
    waiting = [worker(rank, waits={X: 45}) for rank in (0, 2)]
    assert judge(*waiting, worker(1, end=End(watched=False))) is None


def test_a_worker_that_handled_its_error():
    own = End(code="exit code 1 after KeyError: 'x'\n  at train.py:3")
    suffered = End(code="exit code 1 after UnknownError: Horovod", consequence=True)
    found = judge(worker(0, end=suffered), worker(1, end=own), worker(2, end=SHUT_DOWN))
    assert found.final
    assert found.text == f"rank 1 (vm1) ended the program with {own.code}"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Horovod has been shut down. This was caused by an exception on one of the ranks.", True),
        ("{{node HorovodAllreduce}} Connection closed by peer", True),
        ("ncclAllReduce failed: unhandled cuda error [Op:HorovodAllreduce]", False),
        ("ncclAllReduce failed: remote process exited [Op:HorovodAllreduce]", True),
        ("KeyError: 'x'\nTraceback (most recent call last):\n  File \"/train_horovod.py\", line 3", False),
        ("RuntimeError: Traceback (most recent call last): ... Horovod has been shut down", True),
        ("disk full", False),
        ("[horovod-0.28.1/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer", True),
        ("/data/horovod/train-0: I/O error", False),
        ("Detected at node 'add' ... File \"/opt/envs/Horovod28/bin/train.py\", line 3", False),
    ],
)
def test_whose_error_it_is(text, expected):
    """What Python raises in a data pipeline is as unknown to TensorFlow as what Horovod says."""
    error = tf.errors.UnknownError(None, None, text)
    assert is_horovods(error) is expected
    later = ValueError("in the user's handler")
    later.__context__ = error
    assert is_horovods(later) is expected
    assert not is_horovods(ValueError(text))


def test_horovod_lost_patience_first():
    found = judge(worker(0, end=SHUT_DOWN), worker(1, silent=30), worker(2))
    assert found.final and found.text.startswith("rank 1 (vm1) did not answer for 30 s")


def test_a_worker_that_does_not_call():
    workers = [worker(r, waits={X: 50.0 + r}) for r in (0, 2, 3)]
    found = judge(worker(1), *workers)
    assert not found.final and found.stall and found.seconds == 53
    first, *lines = found.text.splitlines()
    assert first == (
        f"rank 1 (vm1) did not call '{X}', for which ranks 0 (vm0), 2 (vm2), 3 (vm3) waited 53 s."
    )
    assert lines[0] == "  rank 1 is at train.py:1"
    assert lines[1] == f"  rank 0 waits in '{X}', at train.py:0"
    assert "if rank == 0" in lines[-1]
    assert judge(worker(1), *workers, stall=53).final


def test_all_wait_for_each_other():
    """`if rank == 0: metric.result()`, while the others go on with the next step."""
    found = judge(worker(0, waits={Y: 46}), worker(1, waits={X: 45}), worker(2, waits={X: 60}))
    assert found.final and found.stall
    assert f"rank 0 (vm0) did not call '{X}'" in found.text
    assert f"rank 0 waits in '{Y}'" in found.text


def test_all_wait_for_each_other_outside_of_functions():
    """`if rank == 0: model.load_weights(path)`: nothing is a function's, of which others may come."""
    other = "agreement.all_gather.eager"
    found = judge(worker(0, waits={other: 45}), worker(1, waits={Y: 46}))
    assert found.final and found.stall


def test_one_that_may_still_call_is_waited_for():
    assert not judge(worker(0, waits={Y: 60}), worker(1, waits={X: 44})).final
    # They wait in X together: it is on its way, and Y may come after it.
    both = judge(worker(0, waits={X: 60, Y: 60}), worker(1, waits={X: 60}))
    assert not both.final


def test_infinite_patience():
    workers = worker(0, silent=1e9), worker(1, waits={X: 1e9})
    assert judge(*workers, silence=math.inf, stall=math.inf) is None


# ---- the waits -----------------------------------------------------------------------------------


def test_what_this_worker_waits_in():
    """In a graph and eagerly; a call that failed is no wait, whatever runs later."""
    sites = CallSites()
    waits = Waits(sites)
    begun, end = threading.Event(), threading.Event()

    def wait(x):
        begun.set()
        end.wait()
        if x < 0:
            raise ValueError("it fails")
        return x

    def call(x):
        def fn(name, x):
            return tf.numpy_function(wait, [x], tf.float32)

        return sites.run("k", "p", Bytes(local=1), x, fn)

    def seen_during(function, x):
        begun.clear()
        end.clear()
        caller = threading.Thread(target=lambda: tried.append(attempt(function, x)))
        caller.start()
        begun.wait()
        seen = waits.now(), waits.now()
        end.set()
        caller.join()
        return seen

    def attempt(function, x):
        with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
            return function(tf.constant(x))

    tried = []
    in_graph, none = tf.function(call), frozenset()
    for function, name in ((in_graph, "p.k.call.0"), (call, "p.k.eager")):
        assert seen_during(function, 1.0) == (frozenset({(name, 1)}),) * 2
        assert (waits.now(), waits.now()) == (none, none)
        assert seen_during(function, -1.0) == (frozenset({(name, 2)}),) * 2
        assert (waits.now(), waits.now()) == (none, none)
        assert seen_during(function, 1.0) == (frozenset({(name, 3)}),) * 2
        assert (waits.now(), waits.now()) == (none, none)
    another_graph = tf.function(lambda x: tf.numpy_function(wait, [x], tf.float32))
    assert seen_during(another_graph, 1.0) == (none, none)


# ---- the channel ---------------------------------------------------------------------------------


@pytest.fixture
def address(monkeypatch):
    """Where rank 0 listens."""
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo")
    chief = Channel("secret")
    yield chief, chief.listen()
    chief.close()


def test_messages_both_ways_and_the_end(address):
    chief, where = address
    assert where[0] == "127.0.0.1"
    others = {rank: Channel("secret") for rank in (1, 2)}
    for rank, other in others.items():
        other.connect(where, rank)
    chief.admit(3)
    others[2].send({"line": "a" * 100_000})  # more than one packet
    arrived = []
    while not arrived:
        arrived = chief.poll(1.0)
    assert arrived == [(2, {"line": "a" * 100_000})]
    chief.send({"n": 1})
    chief.send({"n": 2})
    arrived = []
    while len(arrived) < 2:
        arrived += others[1].poll(1.0)
    assert arrived == [(0, {"n": 1}), (0, {"n": 2})]
    assert chief.reaches(1)
    others[1].close()
    assert chief.poll(1.0) == [(1, None)]
    others[2].close()


def test_what_nobody_takes_is_not_cut_in_two(address):
    chief, where = address
    other = Channel("secret")
    other.connect(where, 1)
    chief.admit(2)
    for number in range(200):  # more than the kernel holds
        other.send({"number": number, "line": "a" * 100_000})
    assert not other.reaches(0)
    numbers = []
    for _ in range(400):
        arrived = [message for _, message in chief.poll(0.01)]
        numbers += [message["number"] for message in arrived if message]
        other.send({})
    assert numbers == list(range(len(numbers)))
    assert 10 <= len(numbers) < 200  # the last were dropped, whole
    other.close()


@pytest.mark.parametrize(
    "words",
    [
        b'{"token": "guess", "rank": 1}\n',
        b'{"rank": 1}\n',
        b"[1]\n",
        b"GET / HTTP/1.1\n",
        b"\xff\n",
        b"[" * 5000 + b"\n",
        b"",
    ],
)
def test_a_stranger_is_shown_the_door(address, words):
    chief, where = address
    silent = socket.create_connection(where)
    with socket.create_connection(where) as stranger:
        stranger.sendall(words)
        if not words:
            stranger.shutdown(socket.SHUT_WR)
        for _ in range(3):
            assert chief.poll(0.05) == []
        stranger.settimeout(5)
        assert stranger.recv(1) == b""
    guest = Channel("secret")
    guest.connect(where, 1)
    chief.admit(2)
    guest.send({"hello": 1})
    assert chief.poll(5) == [(1, {"hello": 1})]
    guest.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)
    silent.settimeout(5)
    assert silent.recv(1) == b""  # it waited for the door to close
    silent.close()


def test_an_unreachable_rank_0(address):
    chief, where = address
    chief.admit(1)
    with pytest.raises(RuntimeError, match=r"rank 1 cannot reach .*firewall"):
        Channel("secret").connect(where, 1)


# ---- the thread ----------------------------------------------------------------------------------


def test_a_wait_that_may_be_over_is_no_cause(address):
    """Of a worker whose reports are seconds apart, when the program of another one ends."""
    chief, where = address
    other = Channel("secret")
    other.connect(where, 1)
    chief.admit(2)
    workers = types.SimpleNamespace(sites=CallSites(), topology=Topology((0, 0), 0))
    watch = Watchdog(workers, chief, ["vm0", "vm1"], silence_limit=3000.0, stall_limit=math.inf)
    other.send({"waits": {X: 3001.0}, "line": "train.py:1"})
    while not watch._workers[1].waits:
        time.sleep(0.01)
    watch._at_exit()
    assert watch._told.is_set() and watch._cause is None
    watch.close()
    watch._thread.join(10)  # it closes the channel, as the fixture does
    other.close()


# ---- one worker ----------------------------------------------------------------------------------


def test_one_worker_has_no_thread_and_no_socket():
    program = """
import os, threading
import tf_sparse_strategy as tss
strategy = tss.SparseStrategy()
assert threading.active_count() == 1, threading.enumerate()
links = [os.path.realpath(fd.path) for fd in os.scandir("/proc/self/fd")]
assert links and not [link for link in links if "socket:" in link], links
"""
    root = pathlib.Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, stdin=subprocess.DEVNULL)
