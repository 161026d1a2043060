"""What TCP had to send again."""

from benchmarks import tcp_losses
from benchmarks.tcp_losses import Losses, parse

COUNTERS = """\
Tcp: RtoAlgorithm OutSegs RetransSegs InErrs
Tcp: 1 90 3 0
Udp: InDatagrams
Udp: 7
TcpExt: SyncookiesSent TCPTimeouts TCPLossProbes
TcpExt: 0 1 4
"""


def test_counters_are_found_among_others():
    assert parse(COUNTERS) == Losses(packets=3, timeouts=1)


def test_what_came_since():
    assert Losses(5, 2).since(Losses(3, 1)) == Losses(2, 1)


def test_the_kernel_has_them():
    earlier, later = tcp_losses.now(), tcp_losses.now()
    assert 0 <= earlier.packets <= later.packets and 0 <= earlier.timeouts <= later.timeouts
