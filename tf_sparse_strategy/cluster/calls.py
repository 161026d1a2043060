"""Real connections between the processes of `tss doctor`, as Gloo will make them, and their clocks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import socket
import threading
import time

_SECONDS = 5  # to connect, and to wait for a word: the slowest cloud networks take milliseconds
_QUESTION = b"?"


@dataclasses.dataclass(frozen=True)
class Call:
    """What came of calling one process.

    Attributes:
      rank: who was called.
      error: why it could not be reached, or None.
      clock: its clock minus ours in seconds.
      uncertainty: of `clock`, half the time of the call.
    """

    rank: int
    error: str | None = None
    clock: float = 0.0
    uncertainty: float = 0.0


def clock_offset(sent: float, received: float, theirs: float) -> tuple[float, float]:
    """(their clock minus ours, half the round trip): they answered between `sent` and `received`.

    The offset is as wrong as the way there and the way back are unlike: by half the round trip at
    most (D. Mills, RFC 5905, section 8).

    Example:
      >>> clock_offset(10.0, 10.5, 110.25)
      (100.0, 0.25)
    """
    return theirs - (sent + received) / 2, (received - sent) / 2


class Listener:
    """Answers a question with the time, on every interface; use it as a context manager."""

    def __init__(self):
        self._server = socket.create_server(("", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_) -> None:
        self._server.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                # Each by itself: one that asks nothing must not keep the others waiting.
                threading.Thread(target=_reply, args=self._server.accept()[:1], daemon=True).start()


def _reply(caller: socket.socket) -> None:
    with caller, contextlib.suppress(OSError):
        caller.settimeout(_SECONDS)
        if caller.recv(1):
            caller.sendall(repr(time.time()).encode())


def call(rank: int, address: str, port: int) -> Call:
    """Calls a listener."""
    try:
        with socket.create_connection((address, port), timeout=_SECONDS) as line:
            sent = time.time()
            line.sendall(_QUESTION)  # or the answer could be older than `sent`
            answer = line.makefile("rb").read()
            return Call(rank, None, *clock_offset(sent, time.time(), float(answer)))
    except (OSError, ValueError) as error:
        return Call(rank, str(error) or type(error).__name__)


def call_all(listeners: dict[int, tuple[str, int]]) -> list[Call]:
    """Calls all listeners, {rank: (address, port)}, at once."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(listeners))) as threads:
        calls = [threads.submit(call, rank, *where) for rank, where in listeners.items()]
    return [call.result() for call in calls]
