"""netlab: a cluster on one machine, whose links have the speed of a cloud's Ethernet.

    tss netlab --nodes 4 --local 2 --rate 200mbit -- python train.py

Loopback stands for what joins the accelerators of a node, a shaped link for what joins nodes: 200
Mbit/s has about the ratio to loopback that 25 Gbit Ethernet has to NVLink. Latency is that of the
kernel's own switching, tens of microseconds; it cannot be set.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tf_sparse_strategy.cluster.faults import Fault
from tf_sparse_strategy.cluster.namespaces import LinkBytes, Network
from tf_sparse_strategy.cluster.rate import DEFAULT_BUFFER, DEFAULT_TCP, parse_rate

if TYPE_CHECKING:
    from tf_sparse_strategy.cluster.launch import Job, RankResult

TIMED_OUT = 124  # as timeout(1)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclasses.dataclass(frozen=True)
class Result:
    """How a job ended and what it sent.

    Attributes:
      exit_code: of the first rank that failed, as a shell reports it; 0; or 124 for a timeout.
      seconds: from the start of the ranks to the end of the last.
      ranks: one RankResult per rank.
      links: one LinkBytes per node: what this job sent and received.
      missed: faults that were to come after the job's end.
    """

    exit_code: int
    seconds: float
    ranks: list[RankResult]
    links: list[LinkBytes]
    missed: list[Fault] = dataclasses.field(default_factory=list)

    @property
    def killed(self) -> list[int]:
        """Ranks that did not end by themselves."""
        return [rank.rank for rank in self.ranks if not rank.ended_by_itself]


class Netlab(Network):
    """M nodes with G workers each; use it as a context manager. Needs root on Linux.

    Args:
      nodes: M, 1 to 250; default 4.
      local: G, workers per node; default 2.
      rate: of each link, in each direction: bits per second, or text such as "200mbit", the default.
      buffer: seconds of traffic that a port holds; default 0.05. What comes faster than a port sends, as in
        an all-to-all, waits there, and beyond is lost until TCP sends it again.
      tcp: the nodes' congestion control, one that the kernel has loaded; default "cubic".

    Raises:
      NetlabError: the machine cannot hold it; the message says why.
      ValueError: an argument is out of range.

    Example:
      ```
      with Netlab(nodes=2, local=1, rate="1gbit") as lab:
          result = lab.run([sys.executable, "train.py"], faults=[Fault("kill", 1, seconds=20)])
      print(result.exit_code, result.ranks[0].stderr, result.links[0].sent)
      ```
    """

    def __init__(
        self,
        nodes: int = 4,
        local: int = 2,
        rate: str | int = "200mbit",
        buffer: float = DEFAULT_BUFFER,
        tcp: str = DEFAULT_TCP,
    ):
        if local < 1:
            raise ValueError(f"local={local} is not a number of workers: 1 or more.")
        self.local = local
        self.rate = parse_rate(rate) if isinstance(rate, str) else rate
        self.buffer, self.tcp = buffer, tcp
        super().__init__(nodes, self.rate, buffer, tcp)

    def __str__(self) -> str:
        links = f"links of {self.rate / 1e6:g} Mbit/s, ports of {self.buffer * 1e3:g} ms, TCP {self.tcp}"
        return f"{len(self.nodes)} nodes x {self.local} workers, {links}"

    def start(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, echo: bool = False
    ) -> Job:
        """Starts a Horovod job on all nodes: `with lab.start(...) as job`.

        Args:
          command: program and arguments of each rank.
          env: the environment, `os.environ` by default; Horovod's variables are added.
          echo: print the ranks' lines instead of keeping them.
        """
        # Not above: the doctor of this package must work where Horovod does not.
        from tf_sparse_strategy.cluster.launch import Job

        return Job(self.nodes, self.local, command, os.environ if env is None else env, echo)

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        echo: bool = False,
        faults: Sequence[Fault] = (),
        grace: float = 60,
        timeout: float = float("inf"),
    ) -> Result:
        """Runs a Horovod job to its end and returns how it went.

        Args:
          command: program and arguments of each rank.
          env: the environment, `os.environ` by default; Horovod's variables are added.
          echo: print the ranks' lines instead of keeping them.
          faults: what goes wrong, and when; default nothing.
          grace: seconds that the others have to end by themselves after the first failure; default 60.
          timeout: seconds after which the job is ended; default none.

        Raises:
          ValueError: a fault names a rank or node that is not there.
          ImportError: Horovod's launcher cannot be imported.
        """
        for fault in faults:
            fault.check(len(self.nodes), self.local * len(self.nodes))
        pending = sorted(faults, key=lambda fault: fault.seconds, reverse=True)
        carried = self.traffic()
        with self.start(command, env, echo) as job:
            deadline, failed = job.begin + timeout, False
            while job.running() and time.monotonic() < deadline:
                while pending and time.monotonic() >= job.begin + pending[-1].seconds:
                    self._inflict(pending.pop(), job)
                if not failed and job.failed():
                    failed = True
                    deadline = min(deadline, time.monotonic() + grace)
                time.sleep(0.02)
            job.end()
            ranks = job.results()
        seconds = round(time.monotonic() - job.begin, 3)
        links = [now - before for now, before in zip(self.traffic(), carried, strict=True)]
        return Result(_exit_code(ranks), seconds, ranks, links, pending[::-1])

    def _inflict(self, fault: Fault, job: Job) -> None:
        if fault.kind == "cut":
            self.cut(fault.target)
        else:
            job.signal(fault.target, _SIGNALS[fault.kind])


def _exit_code(ranks: Sequence[RankResult]) -> int:
    """The first failure's; ranks that did not end by themselves count when none failed before."""
    failures = [rank for rank in ranks if rank.exit_code and rank.ended_by_itself]
    if failures:
        return min(failures, key=lambda rank: rank.seconds).exit_code
    return 0 if all(rank.ended_by_itself for rank in ranks) else TIMED_OUT
