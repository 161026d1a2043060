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
    before = tcp_losses.now()
    after = tcp_losses.now().since(before)
    assert after.packets >= 0 and after.timeouts >= 0
