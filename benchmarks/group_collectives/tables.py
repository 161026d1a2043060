"""From measurements to Markdown tables. Pure."""

import statistics
from collections.abc import Iterable

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
OURS = ("all-to-all", "all-to-all + sum", "Collectives")
TITLES = {
    "process_sets": "In a job with process sets",
    "no_process_sets": "In a job without process sets",
    "overhead": "Cost of a call, 2 workers, 16 bytes",
}


def _size(n: int) -> str:
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if n >= factor:
            return f"{n // factor} {unit}"
    return f"{n} B"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _spread(values: list[float], unit: str) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    scale = {"ms": 1e3, "µs": 1e6}[unit]
    return f"{middle * scale:.3g} ({low * scale:.3g}–{high * scale:.3g})"


def _table(records: list[dict], unit: str) -> list[str]:
    grouped: dict[tuple, dict[str, dict]] = {}
    for record in records:
        key = record["experiment"], record["bytes"]
        grouped.setdefault(key, {})[record["variant"]] = record
    rows = [
        _row(["operation", "bytes per worker", "way", unit, "ours / this", "wrong results"]),
        _row(["---"] * 6),
    ]
    for (experiment, size), variants in grouped.items():
        ours = next(record["seconds"] for name, record in variants.items() if name in OURS)
        for name, record in variants.items():
            seconds = record["seconds"]
            # Within a round both ran under the same load: the ratio is taken there.
            ratio = statistics.median(a / b for a, b in zip(ours, seconds, strict=True))
            shown = "" if seconds is ours else f"{ratio:.2f}"
            cells = experiment, _size(size), name, _spread(seconds, unit), shown
            rows.append(_row([*cells, str(record["wrong"] or "")]))
    return rows


def render(results: dict) -> str:
    """Returns all tables: medians (quartiles) over rounds of the slowest worker's time."""
    lines = [", ".join(f"{name} {value}" for name, value in results["environment"].items()) + "."]
    for job, records in results["jobs"].items():
        unit = "µs" if job == "overhead" else "ms"
        lines += ["", f"### {TITLES[job]}", "", *_table(records, unit)]
    return "\n".join(lines) + "\n"


def insert(document: str, results: dict) -> str:
    """Returns the document with its tables replaced.

    Raises:
      ValueError: the markers are missing.
    """
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document needs the lines {BEGIN!r} and {END!r}, in this order.")
    return f"{head}{BEGIN}\n{render(results)}{END}{tail}"
