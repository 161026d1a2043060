"""How long collectives take: the alpha-beta model of two link classes, as pure functions.

A collective that S workers wait for, over links that all work at once, takes

    T = phase + hops alpha + max(local bytes local_beta, cross bytes cross_beta)

and an all-to-all, in place of the phase, phase + exchange:

- *phase*: Horovod agrees by cycles on what all workers have ready, before the first byte moves. Collectives
  that wait for one another pay it each.
- *exchange*: all workers tell one another how much they will send, with messages to each.
- *hops*: messages that wait for one another. They are the slower class's as soon as there are two nodes: a
  group inside a node is an all-to-all with empty messages to all others.
- *local bytes* are what the busiest worker sends inside its node, *cross bytes* what the busiest node sends
  to others: its workers share one link. Links are full duplex, and as much arrives as leaves.

With n bytes per worker, G workers on each of M nodes, and ranks that follow the nodes:

| method                  | phases | hops               | local bytes | cross bytes          |
|-------------------------|--------|--------------------|-------------|----------------------|
| all_reduce GLOBAL       | 1      | 2(P-1)             | 2n(P-1)/P   | 2n(P-1)/P            |
| all_gather GLOBAL       | 1      | P-1                | n(P-1)      | n(P-1)               |
| all_to_all GLOBAL       | 1      | 2                  | n(G-1)/P    | G n(P-G)/P           |
| all_to_all LOCAL        | 1      | 2                  | n(G-1)/G    | 0                    |
| all_to_all CROSS        | 1      | 2                  | 0           | G n(M-1)/M           |
| broadcast               | 1      | 2 + 3 ceil(log2 P) | n per round | n per sender of a node, per round |

A reduce_scatter is an all-to-all and a sum, whose time is not counted (of sparse schemes it is part of
*selection*); GLOBAL, on several nodes of equal size, it is one LOCAL, and one CROSS of n/G bytes. An
all_gather LOCAL or CROSS is an all-to-all of S n bytes; an all_reduce LOCAL or CROSS is a reduce_scatter
and an all_gather of n/S bytes. In rings one worker of each node sends to another node; where ranks
alternate between nodes, all do.

An all-to-all exchanges the splits first (two hops); a broadcast is never in Horovod's cache, so that its
request travels to rank 0 and the answer back by a tree. Rounding up to whole elements is the caller's.

Source: Hockney, "The communication challenge for MPP", Parallel Computing 1994; algorithms as in Gloo.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from tf_sparse_strategy import traffic
from tf_sparse_strategy.topology import Group, Topology
from tf_sparse_strategy.traffic import Bytes


@dataclasses.dataclass(frozen=True)
class LinkModel:
    """What a message costs inside a node and between nodes; see the module's formula.

    Args:
      local_alpha, cross_alpha: latency of one message inside a node and between nodes, seconds.
      local_beta: seconds per byte that one worker sends inside its node, while all workers do.
      cross_beta: seconds per byte of a node's link, which its workers share.
      phase: seconds from a collective's call to its first byte; Horovod's cycles and negotiation. Default 0.
      selection: seconds per element in which a sparse scheme sums in the node, selects the largest, packs and
        adds them up; see communication/work.py. Default 0.
      exchange: seconds more from an all-to-all's call to its first byte, with as many workers as measured.
        Default 0.
      selection_start: seconds of a selection beside, however few the elements: operations that follow one
        another, and workers that wait for the slowest; below 0 where collectives around it start sooner
        than alone. Default 0.

    Raises:
      ValueError: a parameter is not finite, or negative (but for `selection_start`).

    Example:
      >>> model = LinkModel(local_alpha=3e-5, local_beta=1e-9, cross_alpha=1e-4, cross_beta=4e-8)
      >>> LinkModel.from_json(model.to_json()) == model
      True

    Source: Hockney, "The communication challenge for MPP", Parallel Computing 1994.
    """

    local_alpha: float
    local_beta: float
    cross_alpha: float
    cross_beta: float
    phase: float = 0.0
    selection: float = 0.0
    exchange: float = 0.0
    selection_start: float = 0.0

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not (math.isfinite(value) and (value >= 0 or name == "selection_start")):
                raise ValueError(
                    f"LinkModel({name}={value!r}): seconds must be finite and at least 0; measure "
                    "them with `tss doctor --measure`."
                )

    def to_json(self) -> str:
        """The parameters, to be kept and given to `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LinkModel":
        """The model that `to_json` wrote.

        Raises:
          ValueError: the text is no JSON, or a parameter is out of range.
          TypeError: its parameters are others.
        """
        return cls(**json.loads(text))

    def alpha(self, topology: Topology) -> float:
        """Latency of a message that a collective waits for, seconds."""
        return self.local_alpha if topology.num_nodes == 1 else self.cross_alpha


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a collective takes, or several one after the other: costs can be added.

    Args:
      seconds: predicted, the same for all workers; default 0.
      bytes, messages: that this worker sends, `local` and `cross` (within its node, to others); default none.
        Messages without content, by which workers outside a group take part in its all-to-alls, do not count.

    Example:
      >>> (Cost(seconds=2.0) + Cost(seconds=1.0)).seconds
      3.0
    """

    seconds: float = 0.0
    bytes: Bytes = Bytes()
    messages: Bytes = Bytes()

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.seconds + other.seconds, self.bytes + other.bytes, self.messages + other.messages
        )

    def every(self, period: int) -> "Cost":
        """Per step, rounded up, where this is done in one of `period` steps."""

        def part(sent):
            return Bytes(-(-sent.local // period), -(-sent.cross // period))

        return Cost(self.seconds / period, part(self.bytes), part(self.messages))


def all_reduce(topology: Topology, n: int, model: LinkModel, group: Group = Group.GLOBAL) -> Cost:
    """Predicts `Collectives.all_reduce` of `n` bytes.

    Args:
      topology: of any one worker; seconds are the same for all, bytes are that worker's.
      n: bytes each worker holds.
      model: of the links.
      group: who takes part.

    Example:
      >>> model = LinkModel(local_alpha=0, local_beta=1e-9, cross_alpha=1e-4, cross_beta=4e-8)
      >>> round(all_reduce(Topology((0, 0, 1, 1), rank=0), 1 << 20, model).seconds, 4)
      0.0635
    """
    if topology.is_trivial(group):
        return Cost()
    if group is Group.GLOBAL:
        messages = traffic.ring_all_reduce(topology, topology.num_workers)  # of a byte
        return _ring(topology, model, traffic.ring_all_reduce(topology, n), messages)
    scattered = _exchange(topology, model, group, lambda size: n // size)
    return scattered + _exchange(topology, model, group, lambda size: -(-n // size))


def reduce_scatter(
    topology: Topology, n: int, model: LinkModel, group: Group = Group.GLOBAL
) -> Cost:
    """Predicts `Collectives.reduce_scatter` of `n` bytes held by each worker."""
    if group is Group.GLOBAL and topology.is_nested:
        of_node = all_to_all(topology, n, model, Group.LOCAL)
        return of_node + all_to_all(topology, n // topology.local_workers, model, Group.CROSS)
    return all_to_all(topology, n, model, group)


def all_gather(topology: Topology, n: int, model: LinkModel, group: Group = Group.GLOBAL) -> Cost:
    """Predicts `Collectives.all_gather` of `n` bytes from each worker."""
    if topology.is_trivial(group):
        return Cost()
    if group is Group.GLOBAL:
        messages = traffic.ring_all_gather(topology, 1)
        return _ring(topology, model, traffic.ring_all_gather(topology, n), messages)
    return _exchange(topology, model, group, lambda _: n)


def all_to_all(topology: Topology, n: int, model: LinkModel, group: Group = Group.GLOBAL) -> Cost:
    """Predicts `Collectives.all_to_all` of `n` bytes in equal parts."""
    return _exchange(topology, model, group, lambda size: n // size)


def one_each(topology: Topology, to: Sequence[int | None], n: int, model: LinkModel) -> Cost:
    """Predicts an all-to-all in which worker r sends `n` bytes to worker `to[r]`, None for nobody."""
    sent = [
        Bytes() if peer is None else traffic.message(topology.of(rank), peer, n)
        for rank, peer in enumerate(to)
    ]
    local, cross = max(s.local for s in sent), max(_per_node(topology, [s.cross for s in sent]))
    mine = sent[topology.rank]
    count = Bytes(int(mine.local > 0), int(mine.cross > 0))
    return Cost(model.exchange + _seconds(topology, model, 2, local, cross), mine, count)


def broadcast(topology: Topology, n: int, model: LinkModel) -> Cost:
    """Predicts `Collectives.broadcast` of `n` bytes: round d has 2^d senders."""
    p = topology.num_workers
    if p == 1:
        return Cost()
    rounds = (p - 1).bit_length()
    seconds = model.phase + (2 + 3 * rounds) * model.alpha(topology)
    for distance in (1 << d for d in range(rounds)):
        local, leaving = 0, [0] * p
        for sender in range(min(distance, p - distance)):
            if topology.nodes[sender] == topology.nodes[sender + distance]:
                local = n
            else:
                leaving[sender] = n
        busiest = max(_per_node(topology, leaving))
        seconds += max(local * model.local_beta, busiest * model.cross_beta)
    sent, messages = (traffic.binomial_broadcast(topology, size) for size in (n, 1))
    return Cost(seconds, sent, messages)


def selection(n: int, model: LinkModel) -> Cost:
    """Predicts what a scheme computes on `n` elements."""
    return Cost(model.selection_start + n * model.selection)


def fit_line(samples: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Fits seconds = a + b bytes to repeated timings of at least two sizes.

    Least squares through the median of each size, so that a few disturbed timings do not matter;
    neither result is negative.

    Args:
      samples: seconds by bytes.

    Returns:
      (a, seconds; b, seconds per byte).

    Example:
      >>> fit_line({1000: [2.0, 2.0, 9.0], 3000: [4.0]})
      (1.0, 0.001)
    """
    sizes = list(samples)
    times = [statistics.median(seconds) for seconds in samples.values()]
    slope = max(0.0, statistics.linear_regression(sizes, times).slope)
    start = statistics.fmean(times) - slope * statistics.fmean(sizes)
    return max(0.0, start), slope


def _ring(topology: Topology, model: LinkModel, sent: Bytes, messages: Bytes) -> Cost:
    """Each worker passes as much to its neighbour; the slowest link sets the pace."""
    nodes = topology.nodes
    crosses = [int(node != nodes[rank - 1]) for rank, node in enumerate(nodes)]
    local = sent.total if not all(crosses) else 0
    cross = max(_per_node(topology, crosses)) * sent.total
    return Cost(_seconds(topology, model, messages.total, local, cross), sent, messages)


def _exchange(
    topology: Topology, model: LinkModel, group: Group, part: Callable[[int], int]
) -> Cost:
    """Everyone sends `part(S)` bytes to each of the others in its group of S workers."""
    if topology.is_trivial(group):
        return Cost()
    sizes, p = topology.node_sizes, topology.num_workers
    local = cross = 0
    if group is Group.LOCAL:
        local = max((g - 1) * part(g) for g in sizes)
    elif group is Group.GLOBAL:
        local = (max(sizes) - 1) * part(p)
        cross = max(g * (p - g) for g in sizes) * part(p)
    else:
        columns = [sum(g > j for g in sizes) for j in range(max(sizes))]  # workers of local index j
        cross = max(sum((m - 1) * part(m) for m in columns[:g]) for g in sizes)
    own = topology.size(group)
    sent, messages = (traffic.all_to_all(topology, group, own * size) for size in (part(own), 1))
    return Cost(model.exchange + _seconds(topology, model, 2, local, cross), sent, messages)


def _seconds(topology, model, hops, local, cross):
    moving = max(local * model.local_beta, cross * model.cross_beta)
    return model.phase + hops * model.alpha(topology) + moving


def _per_node(topology, values):
    """Sums over the workers of each node."""
    sums = [0] * topology.num_nodes
    for node, value in zip(topology.nodes, values, strict=True):
        sums[node] += value
    return sums
