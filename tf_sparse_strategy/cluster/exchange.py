"""How the processes of `tss doctor` tell each other what they found, before Horovod can connect.

Under a launcher through the store that it keeps for Horovod's rendezvous, over ssh through standard
input and output. Both need less than a job does: no port but those in use already.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

PATIENCE = 120  # seconds for the slowest to examine itself: TensorFlow is imported meanwhile
_ATTEMPTS = 3  # to reach the store
LINE = "tss doctor: "  # before what is meant for us: a login shell may print what it likes


class ExchangeError(RuntimeError):
    """No way to the others; the message says which and what to do."""


class Exchange(Protocol):
    """Called by every process in the same order."""

    rank: int

    def all_gather(self, value: Any) -> list[Any]:
        """Returns every process's value, in rank order; None for those that did not answer."""


class Alone:
    """One process."""

    rank = 0

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


class ThroughRendezvous:
    """The ranks of a job, through the launcher's store: plain HTTP, as Horovod will use it.

    What is told under one `name` and round is kept until the store ends: another use needs another name.
    """

    def __init__(
        self, environment: Mapping[str, str], patience: float = PATIENCE, name: str = "tss_doctor"
    ):
        self.rank = int(environment["HOROVOD_RANK"])
        self._size = int(environment["HOROVOD_SIZE"])
        self._host = environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = int(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        self._patience = patience
        self._name, self._round = name, 0

    def all_gather(self, value: Any) -> list[Any]:
        self.tell(value)
        return self.hear(self._patience)

    def tell(self, value: Any) -> None:
        """The first half of `all_gather`: the others may go on when they have heard it."""
        self._request("PUT", f"/{self._name}_{self._round}/{self.rank}", json.dumps(value))

    def hear(self, patience: float) -> list[Any]:
        """The second half: waits for the others, `patience` seconds at most."""
        scope, self._round = f"{self._name}_{self._round}", self._round + 1
        deadline = time.monotonic() + patience
        values, pause = [None] * self._size, 0.02
        for rank in range(self._size):
            while (answer := self._request("GET", f"/{scope}/{rank}")) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(pause)
                pause = min(1.2 * pause, 1.0)
            values[rank] = answer and json.loads(answer)
        return values

    def _request(self, method: str, path: str, body: str = "") -> str | None:
        """Returns what the store answers, None when it has no such value (yet)."""
        content = body.encode()
        head = f"{method} {path} HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n"
        for left in reversed(range(_ATTEMPTS)):
            try:
                with socket.create_connection((self._host, self._port), timeout=10) as line:
                    line.sendall(head.encode() + content)
                    # To the end, so that the store hangs up first: the port here is free again at once.
                    answer = line.makefile("rb").read().decode()
                break
            except OSError as error:
                if left and isinstance(error, TimeoutError | ConnectionResetError):
                    continue  # a store that many ask at once
                raise ExchangeError(
                    f"rank {self.rank} cannot reach the launcher's rendezvous at "
                    f"{self._host}:{self._port} ({error}): allow TCP to every port between the nodes, "
                    "and start the job from one of them."
                ) from error
        status, _, value = answer.partition("\r\n\r\n")
        return value if " 200 " in status.partition("\r\n")[0] else None


class ThroughPipe:
    """A process that another one started, on any machine, and to whose output that one listens."""

    def __init__(self, rank: int):
        self.rank = rank

    def all_gather(self, value: Any) -> list[Any]:
        print(LINE + json.dumps(value), flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise ExchangeError("the process that started this one has gone.")
        return json.loads(answer)
