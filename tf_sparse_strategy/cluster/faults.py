"""What can be made to go wrong in an emulated cluster, and when."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

TARGETS = {"kill": "RANK", "stop": "RANK", "cut": "NODE"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that goes wrong at a given time.

    Args:
      kind: "kill" (SIGKILL to a rank: out of memory, a preempted machine), "stop" (SIGSTOP to a
        rank: it lives and does not answer) or "cut" (a node's link loses every frame).
      target: the rank, for "cut" the node; counted from 0.
      seconds: after the start of the ranks.
    """

    kind: Literal["kill", "stop", "cut"]
    target: int
    seconds: float

    @staticmethod
    def parse(kind: str, text: str) -> Fault:
        """Returns the fault that "RANK@SECONDS" or "NODE@SECONDS" describes.

        Raises:
          ValueError: the text is neither.

        Example:
          >>> Fault.parse("cut", "1@2.5")
          Fault(kind='cut', target=1, seconds=2.5)
        """
        match = re.fullmatch(r"(\d+)@(\d+(?:\.\d+)?)", text)
        if not match:
            raise ValueError(
                f"{kind} {text!r} is not {TARGETS[kind]}@SECONDS: write e.g. --{kind} 1@20."
            )
        return Fault(kind, int(match[1]), float(match[2]))

    def check(self, nodes: int, ranks: int) -> None:
        """Raises ValueError when the cluster has no such rank or node."""
        what, count = ("node", nodes) if self.kind == "cut" else ("rank", ranks)
        if not 0 <= self.target < count:
            raise ValueError(
                f"{self.kind} {self.target}@{self.seconds:g}: there is no {what} {self.target}; "
                f"{what}s are 0 to {count - 1}."
            )
