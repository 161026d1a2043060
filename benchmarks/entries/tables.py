"""Measurements to Markdown; pure."""

import statistics

from benchmarks.entries.ways import OURS
from benchmarks.report import environment_line, spread, table


def _rows(record: dict) -> list[list[str]]:
    ours = statistics.median(record["seconds"][OURS[record["kind"]]])
    return [
        [way, spread(seconds, 1e3), f"{statistics.median(seconds) / ours:.2f}"]
        for way, seconds in record["seconds"].items()
    ]


def render(results: dict) -> str:
    """One table for each size and kind."""
    parts = [environment_line(results)]
    for record in results["records"]:
        n, k = record["n"], record["k"]
        what = f"{results['messages']} messages of {k:,} entries added up into {n:,} elements"
        if record["kind"] == "replace":
            what = f"{k:,} of {n:,} elements replaced, in a vector that is made before"
        parts += [f"### {what}", table(["", "ms", "times ours"], _rows(record))]
    return "\n\n".join(parts)
