"""How well communication hides behind computation, from a trace's bars. Pure.

In a step of this worker, of length T, with C the times in which it computed and N those in which it
communicated,

    computation stall = T - |C|            the processor waits
    overlap ratio     = |C and N| / |N|    of the communication, what is hidden

A bar of communication begins when its operation has its input, so that waiting for a slower worker counts
as communication, and as stall of the one that waits.

Source: Li et al., "EmbRace: Accelerating Sparse Communication for Distributed Training of NLP Neural
Networks", section 5.4 of the first version (computation stall).
"""

import dataclasses
from collections.abc import Iterable, Sequence

from tf_sparse_strategy.trace import COMPUTE, STEPS, Span

Interval = tuple[int, int]


def union(intervals: Iterable[Interval], gap: int = 0) -> list[Interval]:
    """Disjoint intervals, in order, that cover the same, and what is between them if no longer than `gap`.

    Example:
      >>> union([(5, 7), (1, 3), (2, 4), (4, 5), (9, 10)])
      [(1, 7), (9, 10)]
      >>> union([(1, 3), (5, 7), (10, 11)], gap=2)
      [(1, 7), (10, 11)]
    """
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif begin < end:
            found.append((begin, end))
    return found


def common(a: Sequence[Interval], b: Sequence[Interval]) -> int:
    """Length of what two unions have in common.

    Example:
      >>> common([(0, 4), (6, 9)], [(3, 7)])
      2
    """
    length, i, j = 0, 0, 0
    while i < len(a) and j < len(b):
        length += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return length


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one worker's traced steps.

    Args:
      steps: how many.
      total: they took.
      computing, communicating, both: of it.
    """

    steps: int = 0
    total: float = 0.0
    computing: float = 0.0
    communicating: float = 0.0
    both: float = 0.0

    @property
    def stall(self) -> float:
        """Seconds per step in which the worker did not compute."""
        return (self.total - self.computing) / self.steps if self.steps else 0.0

    @property
    def overlap(self) -> float:
        """Of the time in which the worker communicated, the part in which it computed as well."""
        return self.both / self.communicating if self.communicating else 0.0


def times(spans: Sequence[Span]) -> Times | None:
    """Of one worker's bars; None where none say when it computed."""
    steps = union((s.begin, s.end) for s in spans if s.line == STEPS)
    computing = union((s.begin, s.end) for s in spans if s.line == COMPUTE)
    communicating = union((s.begin, s.end) for s in spans if s.is_collective)
    if not computing:
        return None
    within = [_clipped(computing, steps), _clipped(communicating, steps)]
    return Times(
        sum(s.line == STEPS for s in spans),
        *(1e-6 * sum(end - begin for begin, end in x) for x in (steps, *within)),
        1e-6 * common(*within),
    )


def _clipped(intervals, windows):
    return union(
        (max(begin, first), min(end, last))
        for first, last in windows
        for begin, end in intervals
        if begin < last and first < end
    )


def rates(workers: Sequence[Times | None]) -> dict[str, float]:
    """What Keras logs of all workers' times; nothing where one is missing.

    Returns:
      `computation_stall` (seconds per step, of the worker that waits longest) and `overlap_ratio` (of all
      workers' communication).
    """
    if None in workers:
        return {}
    communicating = sum(t.communicating for t in workers)
    return {
        "computation_stall": max(t.stall for t in workers),
        "overlap_ratio": sum(t.both for t in workers) / communicating if communicating else 0.0,
    }
