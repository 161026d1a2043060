"""Whether dividing the norms over the workers pays: measured once, decided by all alike."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

WARM_UP, REPEATS = 3, 10
LEAST_GAIN = 0.05  # of the local time; below that a change of load decides, not the method
LEAST_SECONDS = 50e-6


class Decision(NamedTuple):
    """Whether the norms are divided over the workers, and why."""

    divide: bool
    reason: str


def decide(local: list[float], divided: list[float]) -> Decision:
    """Divides where that saves more than 5 % and 50 µs for the slowest worker.

    Args:
      local: seconds in which each worker computes all norms itself.
      divided: seconds in which each worker computes its share and gathers all.

    Example:
      >>> decide([0.010, 0.012], [0.007, 0.007])
      Decision(divide=True, reason='divided 7.00 ms, alone 12.00 ms on the slowest of 2 workers')
    """
    slowest_local, slowest_divided = max(local), max(divided)
    gain = slowest_local - slowest_divided
    return Decision(
        gain > max(LEAST_GAIN * slowest_local, LEAST_SECONDS),
        f"divided {slowest_divided * 1e3:.2f} ms, alone {slowest_local * 1e3:.2f} ms on the slowest "
        f"of {len(local)} workers",
    )


def median_seconds(*runs: Callable[[], None], ready: Callable[[], None]) -> list[float]:
    """Median time of each of `runs` after a warm-up; they take turns, so that a change of load hits all.

    Args:
      runs: what is measured.
      ready: called before each: a barrier, or one run would wait for those who are late from the other.
    """
    times = [[] for _ in runs]
    for _ in range(WARM_UP + REPEATS):
        for run, seconds in zip(runs, times, strict=True):
            ready()
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds[WARM_UP:]) for seconds in times]
