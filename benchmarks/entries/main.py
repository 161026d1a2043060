"""How long does it take to add up entries, or to replace some?

make bench-entries                         measures, publishes; a minute
python -m benchmarks.entries.main --quick  short vectors; prints only
"""

import time

import numpy as np

from benchmarks import report
from benchmarks.entries import tables, ways

SIZES = [(1_000_000, 10_000), (25_000_000, 25_000), (25_000_000, 250_000)]  # elements, entries of a message
MESSAGES = 4
ROUNDS = 9


def timed(contenders: dict, rounds: int) -> dict[str, list[float]]:
    """Seconds of each in turn, after one round that does not count."""
    found = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - begin)
    return {name: seconds[1:] for name, seconds in found.items()}


def check(contenders: dict) -> None:
    """All but the last, which is the floor, give the same."""
    first, *others, _ = (np.asarray(run()).ravel() for run in contenders.values())
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-6, atol=1e-6)


def measure(quick: bool) -> dict:
    """One record for each size."""
    records = []
    for n, k in [(10_000, 100)] if quick else SIZES:
        for kind, contenders in (("add", ways.adding(n, k, MESSAGES)), ("replace", ways.replacing(n, k))):
            check(contenders)
            seconds = timed(contenders, 3 if quick else ROUNDS)
            records.append({"kind": kind, "n": n, "k": k, "seconds": seconds})
    return {"messages": MESSAGES, "records": records}


if __name__ == "__main__":
    report.main("entries", __doc__, measure, tables.render)
