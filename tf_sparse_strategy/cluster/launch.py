"""Starts one Horovod job on the nodes of a network, without ssh, and watches it end.

The ranks' places and the rendezvous are Horovod's own (`horovod.runner`), so that they find each
other exactly as under horovodrun. This does not bind to Horovod's runtime: no rank's library is
loaded here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from tf_sparse_strategy.cluster.namespaces import INTERFACE, Node

try:
    from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
except ImportError as error:
    raise ImportError(
        f"tss starts jobs as Horovod's launcher does, and importing that failed: {error}. "
        "Run `tss doctor`."
    ) from error

_FAREWELL = 5  # seconds between SIGTERM and SIGKILL, as horovodrun's
_printing = threading.Lock()


@dataclasses.dataclass(frozen=True)
class RankResult:
    """How one rank ended; times in seconds since the job's start."""

    rank: int
    node: str
    exit_code: int  # as a shell reports it: 128 + n after signal n
    seconds: float
    ended_by_itself: bool  # False: it still ran when the job was ended, and was killed
    stdout: str  # empty when it was echoed
    stderr: str


def rendezvous(
    node: Node, slots: Sequence[SlotInfo]
) -> contextlib.AbstractContextManager[int]:
    """Serves Horovod's rendezvous on `node`; gives its port."""
    server = node.within_network(
        lambda: RendezvousHTTPServer((node.address, 0), RendezvousHandler, verbose=0)
    )
    return serving(server, slots)


@contextlib.contextmanager
def serving(server: RendezvousHTTPServer, slots: Sequence[SlotInfo]) -> Iterator[int]:
    """Answers a rendezvous server's workers; gives its port."""
    server.init(slots)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rendezvous_at(port: int) -> contextlib.AbstractContextManager[int]:
    """Serves Horovod's rendezvous at a port of this machine, for workers that others start."""
    server = _Rendezvous(("", port), RendezvousHandler, verbose=0)
    return serving(server, [])


class _Rendezvous(RendezvousHTTPServer):
    request_queue_size = 1024  # workers come all at once


def slot_environment(hosts: Sequence[str], rank: int) -> dict[str, str]:
    """What tells Horovod the place of `rank`, given the host of each rank in rank order.

    Example:
      >>> slot_environment(["vm1", "vm1", "vm2"], 2)["HOROVOD_CROSS_RANK"]
      '1'
    """
    on_my_host = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    local = on_my_host.index(rank)
    across = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local]
    slot = SlotInfo(
        hostname=hosts[rank],
        rank=rank,
        local_rank=local,
        cross_rank=across.index(hosts[rank]),
        size=len(hosts),
        local_size=len(on_my_host),
        cross_size=len(across),
    )
    return create_slot_env_vars(slot)


class _Rank:
    """A process on a node, its output and its end."""

    def __init__(self, slot: SlotInfo, node: Node, command, environment, begin, echo: bool):
        self.slot = slot
        self._begin = begin
        self._process = subprocess.Popen(
            node.command(*command),
            env={**environment, **create_slot_env_vars(slot)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # the terminal's Ctrl-C is for the launcher, which ends all
        )
        self._seconds: float | None = None
        self._ended_by_itself = True
        self._output: tuple[list[str], list[str]] = ([], [])
        pipes = (self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)
        self._threads = [
            threading.Thread(target=self._read, args=(pipe, kept, shown if echo else None))
            for (pipe, shown), kept in zip(pipes, self._output, strict=True)
        ] + [threading.Thread(target=self._wait)]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe, kept: list[str], shown) -> None:
        for line in pipe:
            if shown is None:
                kept.append(line)
                continue
            line = f"[{self.slot.rank} {self.slot.hostname}] {line.rstrip()}"
            # Of `| head`, a full disk, or signs that an encoding lacks: the rank must not wait.
            with _printing, contextlib.suppress(OSError, ValueError):
                print(line, file=shown, flush=True)

    def _wait(self) -> None:
        self._process.wait()
        self._seconds = time.monotonic() - self._begin

    @property
    def running(self) -> bool:
        return self._seconds is None

    @property
    def exit_code(self) -> int:
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Sends a signal to the process itself: the one that we started enters the node for it."""
        path = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while self.running:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in path.read_text().split():
                    os.kill(int(child), number)
                    if number == signal.SIGCONT:
                        self.wake()
                    return
            time.sleep(0.01)  # it is about to start, or has just ended

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.running:
            self._ended_by_itself = False
            self.signal(signal.SIGTERM)

    def wake(self) -> None:
        """Lets the process that we started look after its child again: it stops with it."""
        self._process.send_signal(signal.SIGCONT)

    def result(self) -> RankResult:
        """Returns how it ended, after its end."""
        for thread in self._threads:
            thread.join()
        return RankResult(
            self.slot.rank,
            self.slot.hostname,
            self.exit_code,
            round(self._seconds, 3),
            self._ended_by_itself,
            *("".join(lines) for lines in self._output),
        )


class Job:
    """The ranks of one Horovod job, `local` on each node; use it as a context manager.

    One job at a time: its end is the end of every process on the nodes.

    Args:
      nodes: where they run, in the order of their ranks.
      local: G, ranks per node.
      command: program and arguments, the same for every rank.
      environment: what the ranks inherit; Horovod's variables are added.
      echo: print what the ranks print, each line behind its rank and node, instead of keeping it.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        local: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        echo: bool,
    ):
        hosts = parse_hosts(",".join(f"{node.name}:{local}" for node in nodes))
        slots = get_host_assignments(hosts, local * len(nodes))
        self._nodes = nodes
        by_name = {node.name: node for node in nodes}
        self._ranks: list[_Rank] = []
        self._opened = contextlib.ExitStack()
        with self._opened:
            port = self._opened.enter_context(rendezvous(nodes[0], slots))
            self._opened.callback(self.end)
            launcher = create_run_env_vars(nodes[0].address, [INTERFACE], port)
            full = {
                **environment,
                "PYTHONUNBUFFERED": "1",
                **{name: str(value) for name, value in launcher.items()},
            }
            self.begin = time.monotonic()
            for slot in slots:
                node = by_name[slot.hostname]
                self._ranks.append(_Rank(slot, node, command, full, self.begin, echo))
            self._opened = self._opened.pop_all()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_) -> None:
        self._opened.close()

    def running(self) -> list[int]:
        """Ranks that have not ended."""
        return [rank.slot.rank for rank in self._ranks if rank.running]

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal, e.g. `signal.SIGKILL`, `SIGSTOP` or `SIGCONT`, to a rank."""
        self._ranks[rank].signal(number)

    def failed(self) -> bool:
        """Whether a rank has ended with a code other than 0."""
        return any(rank.exit_code for rank in self._ranks if not rank.running)

    def end(self) -> None:
        """Ends what still runs on the nodes: SIGTERM to the ranks, after 5 seconds SIGKILL to all."""
        for rank in self._ranks:
            rank.ask_to_end()
        deadline = time.monotonic() + _FAREWELL
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.02)
        for node in self._nodes:
            node.kill_all()
        for rank in self._ranks:
            rank.wake()

    def results(self) -> list[RankResult]:
        """How each rank ended, after all have."""
        return [rank.result() for rank in self._ranks]
