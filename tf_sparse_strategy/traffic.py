"""Bytes each collective puts on the wire, by link class: pure functions of sizes.

Sizes are what one worker sends. `n` is the payload in bytes held by one worker before the
operation; P, S are the workers taking part. Framing, TCP/IP headers and Horovod's negotiation
(about a hundred bytes per cycle) are not counted. An all-gather counts each worker's own part on all
P-1 hops: where parts differ, all workers' sum is exact, and neither one worker's nor the part between nodes.
"""

import dataclasses

from tf_sparse_strategy.topology import Group, Topology


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes, or messages, that one worker sends: inside its node and to other nodes."""

    local: int = 0
    cross: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.local + other.local, self.cross + other.cross)

    @property
    def total(self) -> int:
        return self.local + self.cross


def message(topology: Topology, peer: int, n: int) -> Bytes:
    """`n` bytes to the worker of rank `peer`."""
    return Bytes(local=n) if topology.nodes[peer] == topology.node else Bytes(cross=n)


def _to_neighbour(topology: Topology, n: int, step: int) -> Bytes:
    return message(topology, (topology.rank + step) % topology.num_workers, n)


def ring_all_reduce(topology: Topology, n: int) -> Bytes:
    """Ring: 2(P-1) messages of n/P bytes to the rank before, as Gloo does, 2n(P-1)/P in all."""
    p = topology.num_workers
    return Bytes() if p == 1 else _to_neighbour(topology, 2 * n * (p - 1) // p, -1)


def ring_all_gather(topology: Topology, n: int) -> Bytes:
    """Ring: P-1 messages of n bytes to the next rank."""
    p = topology.num_workers
    return Bytes() if p == 1 else _to_neighbour(topology, n * (p - 1), +1)


def all_to_all(topology: Topology, group: Group, n: int) -> Bytes:
    """Direct exchange: n/S bytes to each of the S-1 others; the own part does not travel."""
    ranks = topology.ranks(group)
    total = Bytes()
    for peer in ranks:
        if peer != topology.rank:
            total += message(topology, peer, n // len(ranks))
    return total


def binomial_broadcast(topology: Topology, n: int) -> Bytes:
    """Binomial tree from rank 0: at most ceil(log2 P) sends of n."""
    total, distance = Bytes(), 1
    while distance < topology.num_workers:
        peer = topology.rank + distance
        if topology.rank < distance and peer < topology.num_workers:
            total += message(topology, peer, n)
        distance *= 2
    return total
