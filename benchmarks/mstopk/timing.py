"""Interleaved timing: every contender once per round, so that a noisy minute hits all alike."""

import itertools
import time
from collections.abc import Callable, Mapping

import numpy as np

Contender = Callable[[int], object]  # called with a number that is new each time


def interleaved(
    contenders: Mapping[str, Contender], rounds: int, warm: bool = False, slow: int = 9
) -> dict[str, dict[str, float]]:
    """Times each contender in each round, after one round of warm-up.

    Args:
      contenders: name to function; it gets the number of the call, to rotate among buffers.
      warm: whether to call each once more just before it is timed, so that its data is in the cache
        rather than the previous contender's.
      rounds: how many times each is timed. A contender that takes over 0.1 s is timed `slow` times.
      slow: see `rounds`.

    Returns:
      For each name, order statistics in microseconds of the time on the wall and of the processor
      time of all threads, which others on the machine lengthen much less, and `rounds`.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    calls = itertools.count()
    for number in range(-1, rounds):
        for name, call in contenders.items():
            if len(times[name]) >= slow and min(cpu for _, cpu in times[name]) > 0.1:
                continue
            if warm:
                call(next(calls))
            call_number = next(calls)
            wall, cpu = time.perf_counter(), time.process_time()
            call(call_number)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number >= 0:
                times[name].append((wall, cpu))
    return {name: summary(np.array(values)) for name, values in times.items()}


def summary(seconds: np.ndarray) -> dict[str, float]:
    """Percentiles of [rounds, 2] times: on the wall, and of the processor."""
    p10, median, p90 = np.round(np.percentile(seconds, [10, 50, 90], axis=0) * 1e6, 1).tolist()
    return {
        "wall_us": median[0],
        "wall_p10_us": p10[0],
        "wall_p90_us": p90[0],
        "cpu_us": median[1],
        "cpu_p10_us": p10[1],
        "cpu_p90_us": p90[1],
        "rounds": len(seconds),
    }
