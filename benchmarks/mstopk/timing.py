"""Interleaved timing: every contender once per round, so that a noisy minute hits all alike."""

import time
from collections.abc import Callable, Mapping

import numpy as np

Contender = Callable[[int], object]  # called with a number that rotates

_SLOW = 9  # rounds of a contender that takes over 0.1 s


def interleaved(
    contenders: Mapping[str, Contender], rounds: int, warm: bool
) -> dict[str, dict[str, float]]:
    """Times each contender in each round, after one round of warm-up.

    Args:
      contenders: name to function; it gets a number, to rotate among buffers: another than the one before
        it, and in each round the next, so that all read the same ones.
      warm: whether to call each once more just before it is timed, so that its data is in the cache
        rather than the previous contender's.
      rounds: how many times each is timed. A contender that takes over 0.1 s is timed 9 times.

    Returns:
      For each name, order statistics in microseconds of the time on the wall and of the processor
      time of all threads, which others on the machine lengthen much less, and `rounds`.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(-1, rounds):
        for position, (name, call) in enumerate(contenders.items(), start=1):
            if len(times[name]) >= _SLOW and min(cpu for _, cpu in times[name]) > 0.1:
                continue
            if warm:
                call(number + position)
            wall, cpu = time.perf_counter(), time.process_time()
            call(number + position)
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
