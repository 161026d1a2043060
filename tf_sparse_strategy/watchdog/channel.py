"""Messages between rank 0 and the other workers, beside Horovod: JSON lines over TCP.

Rank 0 listens on the interface that Horovod uses, until all workers have come and shown the token that
went to them by a collective; then nobody else can join.
"""

import array
import contextlib
import fcntl
import hmac
import json
import os
import selectors
import socket
import termios
import time
import weakref

from tf_sparse_strategy.launcher import own_address

_opened: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _close_all() -> None:
    for opened in list(_opened):
        opened.close()


# Else a child that lives on holds the connection of a killed worker open, whose end nobody notices.
os.register_at_fork(after_in_child=_close_all)

_CONNECT_SECONDS = 30
_LONGEST_MESSAGE = 1 << 20


class _Peer:
    """One connection."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        _opened.add(connection)
        self.rank: int | None = None
        self._received = self._to_send = b""

    def send(self, message: dict) -> None:
        """Sends what it can now, the rest with later messages; drops it where nobody takes any."""
        if len(self._to_send) < _LONGEST_MESSAGE:
            self._to_send += json.dumps(message).encode() + b"\n"
        with contextlib.suppress(OSError):  # its end shows in `receive`, its silence in the clock
            self._to_send = self._to_send[self.socket.send(self._to_send) :]

    def receive(self) -> list[dict] | None:
        """The messages that have come; None at the end of the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        if not data or len(self._received) > _LONGEST_MESSAGE:
            return None
        return [json.loads(line) for line in lines]

    def unsent(self) -> int:
        """Bytes that the other machine has not taken."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.socket, termios.TIOCOUTQ, waiting)
        return waiting[0]


class Channel:
    """One worker's end: to all others on rank 0, to rank 0 on the others.

    All but `wake` belong to one thread.
    """

    def __init__(self, token: str):
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def listen(self) -> tuple[str, int]:
        """Rank 0: opens the door; returns where it is."""
        self._door = socket.create_server((own_address(), 0), backlog=1024)
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ)
        return self._door.getsockname()

    def admit(self, workers: int) -> None:
        """Rank 0: waits for `workers` - 1 others, then closes the door.

        Raises:
          RuntimeError: some did not come.
        """
        deadline = time.monotonic() + _CONNECT_SECONDS
        while len(self._peers) < workers - 1 and time.monotonic() < deadline:
            self.poll(1.0)
        self._selector.unregister(self._door)
        self._door.close()
        for key in list(self._selector.get_map().values()):
            if key.data is not None and key.data.rank is None:
                self._drop(key.data)  # it has shown no token
        missing = sorted(set(range(1, workers)) - set(self._peers))
        if missing:
            raise RuntimeError(
                f"ranks {missing} did not reach the watchdog of rank 0 at {own_address()} within "
                f"{_CONNECT_SECONDS} s. Open the firewall between the machines for all TCP ports, as "
                "Horovod itself needs."
            )

    def connect(self, address: tuple[str, int], rank: int) -> None:
        """The others: joins rank 0.

        Raises:
          RuntimeError: it cannot be reached.
        """
        try:
            connection = socket.create_connection(tuple(address), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise RuntimeError(
                f"rank {rank} cannot reach the watchdog of rank 0 at {address[0]}:{address[1]}: {error}. "
                "Open the firewall between the machines for all TCP ports, as Horovod itself needs."
            ) from error
        peer = self._add(connection)
        peer.send({"token": self._token, "rank": rank})
        self._join(peer, 0)

    def _add(self, connection) -> _Peer:
        peer = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _join(self, peer: _Peer, rank: int) -> None:
        peer.rank = rank
        self._peers[rank] = peer

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._peers.pop(peer.rank, None)

    def poll(self, seconds: float) -> list[tuple[int, dict | None]]:
        """Waits until something comes; returns (rank, message), None for a message at the end."""
        arrived = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._woken:
                self._woken.recv(1 << 10)
            elif key.data is None:
                with contextlib.suppress(OSError):  # it has gone away
                    self._add(self._door.accept()[0])
            else:
                arrived += self._received(key.data)
        return arrived

    def _received(self, peer):
        try:
            messages = peer.receive()
            if peer.rank is None and messages:
                hello = messages.pop(0)
                if not hmac.compare_digest(hello["token"], self._token):
                    raise ValueError("a stranger")
                self._join(peer, hello["rank"])
        except (KeyError, RecursionError, TypeError, ValueError):
            messages = None
        arrived = [(peer.rank, message) for message in messages or ()]
        if messages is None:
            arrived.append((peer.rank, None))
            self._drop(peer)
        return [(rank, message) for rank, message in arrived if rank is not None]

    def send(self, message: dict) -> None:
        """Sends to all at the other end."""
        for peer in self._peers.values():
            peer.send(message)

    def reaches(self, rank: int) -> bool:
        """Whether the machine of `rank` has taken all that was sent to it."""
        return rank not in self._peers or self._peers[rank].unsent() == 0

    def wake(self) -> None:
        """Ends a `poll` of another thread."""
        self._waker.send(b"!")

    def close(self) -> None:
        """Closes all."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        self._waker.close()
        self._woken.close()
