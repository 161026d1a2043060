"""What TCP had to send again on this node: packets that were lost, or came too late."""

import dataclasses
import pathlib

import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives

_COUNTERS = ("/proc/net/snmp", "/proc/net/netstat")


@dataclasses.dataclass(frozen=True)
class Losses:
    """Since the node's start.

    Args:
      packets: sent again.
      timeouts: of connections that waited, 0.2 s at least, because nothing told what was lost.
    """

    packets: int
    timeouts: int

    def since(self, earlier: "Losses") -> "Losses":
        """What came after `earlier`."""
        return Losses(self.packets - earlier.packets, self.timeouts - earlier.timeouts)


def of_all(lost: Losses, comm: Collectives) -> Losses:
    """Summed over the nodes, of which each worker sees its own. Collective."""
    is_first = comm.topology.local == 0
    mine = [is_first * lost.packets, is_first * lost.timeouts]
    both = comm.all_reduce(tf.constant(mine), purpose="losses")
    return Losses(*both.numpy().tolist())


def now() -> Losses:
    """Of this process's network; Linux."""
    return parse("".join(pathlib.Path(path).read_text() for path in _COUNTERS))


def parse(text: str) -> Losses:
    """From the kernel's lines, a line of names before each line of numbers.

    Example:
      >>> parse("Tcp: OutSegs RetransSegs\\nTcp: 90 3\\nTcpExt: TCPTimeouts\\nTcpExt: 1\\n")
      Losses(packets=3, timeouts=1)
    """
    lines = text.splitlines()
    counters = {}
    for names, numbers in zip(lines[::2], lines[1::2], strict=True):
        counters.update(zip(names.split(), numbers.split(), strict=True))
    return Losses(int(counters["RetransSegs"]), int(counters["TCPTimeouts"]))
