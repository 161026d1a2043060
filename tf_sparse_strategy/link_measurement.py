"""Measures the alpha-beta model of this cluster in some 15 seconds; all workers learn the same numbers."""

import dataclasses
import math
import socket
import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_strategy import cost_model
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.launcher import own_address
from tf_sparse_strategy.topology import Group

MESSAGE = bytes(64)
ROUND_TRIPS = 200
CHAIN = 8  # collectives that wait for one another in one run
ROUNDS = 7
LONG_ENOUGH = 0.1  # seconds of one exchange, far above latency and the burst of a shaped link
FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 26  # per worker; grows by 4 until the exchange takes long enough
PATIENCE = 10.0  # seconds for another worker to answer the ping


def measure(collectives: Collectives) -> LinkModel:
    """Measures the links between the workers; collective, some 15 seconds.

    - alpha: half the median round trip of 64 bytes by TCP, in every node and between neighbouring
      nodes; the slowest pair counts.
    - beta: from exchanges within all LOCAL (CROSS) groups at once, of sizes that take about 0.1 s: the
      slope of the time of the slowest worker.
    - phase: the time of one in a chain of tiny all-reduces, less the messages in it.
    - exchange: the same of all-to-alls, less a phase.

    A class of links that no two workers have (one node, or one worker per node) costs 0. Not to be
    used while the cluster is busy: it measures what is left.

    Raises:
      RuntimeError: workers cannot reach each other by TCP; on all workers.

    Example:
      >>> from tf_sparse_strategy import collectives
      >>> collectives.start()
      >>> model = measure(collectives.Collectives(collectives.find_topology()))
    """
    topology = collectives.topology
    if topology.num_workers == 1:
        return LinkModel(0.0, 0.0, 0.0, 0.0)
    local_alpha, cross_alpha = _alphas(collectives)
    local_beta, cross_beta = (_beta(collectives, group) for group in (Group.LOCAL, Group.CROSS))
    links = LinkModel(local_alpha, local_beta, cross_alpha, cross_beta)
    members = topology.num_workers
    chained = _chained(collectives, tf.zeros([1]), _reduced)
    messages = cost_model.all_reduce(topology, 4, links).seconds
    phase = max(0.0, chained - messages)
    chained = _chained(collectives, tf.zeros([members]), _exchanged)
    messages = cost_model.all_to_all(topology, 4 * members, links).seconds
    exchange = max(0.0, chained - messages - phase)
    return dataclasses.replace(links, phase=phase, exchange=exchange)


def _slowest(collectives: Collectives, seconds: float) -> float:
    """The largest value of any worker, on all of them."""
    value = tf.constant(seconds, tf.float64)
    return float(collectives.all_reduce(value, op="max", purpose="links"))


def _time(collectives: Collectives, fn: Callable[[], object]) -> float:
    """Seconds until the slowest worker has `fn`'s result."""
    collectives.barrier()
    begin = time.perf_counter()
    fn()
    return _slowest(collectives, time.perf_counter() - begin)


def _beta(collectives: Collectives, group: Group) -> float:
    topology = collectives.topology
    if topology.is_trivial(group):
        return 0.0
    per_byte = LinkModel(0.0, float(group is Group.LOCAL), 0.0, float(group is Group.CROSS))

    def exchange(n: int) -> float:
        members = topology.size(group)
        x = tf.zeros([n // 4 // members * members])
        return _time(collectives, lambda: collectives.all_to_all(x, group=group, purpose="links"))

    n = FIRST_BYTES
    exchange(n)  # connections and buffers are warm after it
    # The shortest of several: one that was disturbed says nothing of the link.
    while min(exchange(n) for _ in range(3)) < LONG_ENOUGH and n < MOST_BYTES:
        n *= 4
    loads = {
        size: int(cost_model.all_to_all(topology, size, per_byte, group).seconds)
        for size in (n // 4, n)
    }
    return cost_model.fit_line(
        {load: [exchange(size) for _ in range(ROUNDS)] for size, load in loads.items()}
    )[1]


def _reduced(collectives: Collectives, x):
    return collectives.all_reduce(x, op="max", purpose="links")


def _exchanged(collectives: Collectives, x):
    return collectives.all_to_all(x, purpose="links")[0]


def _chained(collectives: Collectives, x, collective: Callable) -> float:
    """Seconds of one of several that wait for one another."""

    @tf.function
    def chain(x):
        for _ in range(CHAIN):
            x = collective(collectives, x)
        return x

    times = [_time(collectives, lambda: chain(x)) for _ in range(ROUNDS + 1)]
    return statistics.median(times[1:]) / CHAIN


def _alphas(collectives: Collectives) -> tuple[float, float]:
    topology = collectives.topology
    with socket.create_server(("", 0)) as server:
        server.settimeout(PATIENCE)
        own = [int(part) for part in own_address().split(".")] + [server.getsockname()[1]]
        everyone = collectives.all_gather(tf.constant([own], tf.int32), purpose="links").numpy()
        alphas = []
        for client, host in (_pair_in_node(topology), _pair_of_nodes(topology)):
            trip, problem = 0.0, None
            try:
                if topology.rank == host:
                    _answer(server)
                elif topology.rank == client:
                    *parts, port = everyone[host].tolist()
                    trip = _round_trip((".".join(map(str, parts)), port))
            except OSError as error:
                trip, problem = math.inf, error
            slowest = _slowest(collectives, trip)
            if math.isinf(slowest):
                raise RuntimeError(
                    "the latency between workers cannot be measured: some cannot reach each other "
                    f"by TCP on any port ({problem or 'their logs say why'}). Open all ports between "
                    "the nodes, as Horovod needs too."
                )
            alphas.append(slowest / 2)
    return alphas[0], alphas[1]


def _pair_in_node(topology) -> tuple[int | None, int | None]:
    """(who pings, who answers) in this worker's node: its first two workers."""
    first, *others = topology.ranks(Group.LOCAL)
    return (first, others[0]) if others else (None, None)


def _pair_of_nodes(topology) -> tuple[int | None, int | None]:
    """(who pings, who answers): the first workers of nodes 0 and 1, of 2 and 3, …"""
    even = topology.node - topology.node % 2
    if even + 1 == topology.num_nodes:
        return None, None
    return topology.nodes.index(even), topology.nodes.index(even + 1)


def _answer(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := connection.recv(len(MESSAGE)):
            connection.sendall(received)


def _round_trip(address: tuple[str, int]) -> float:
    """Median seconds until a small message is back."""
    trips = []
    with socket.create_connection(address, PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            begin = time.perf_counter()
            connection.sendall(MESSAGE)
            missing = len(MESSAGE)
            while missing:
                received = connection.recv(missing)
                if not received:
                    raise ConnectionResetError("the other worker closed the connection")
                missing -= len(received)
            trips.append(time.perf_counter() - begin)
    return statistics.median(trips)
