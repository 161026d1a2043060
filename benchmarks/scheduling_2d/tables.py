"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, said, spread, table
from benchmarks.scheduling_2d.settings import ALONE, WITH, WITHOUT


def stall(job: dict, method: str) -> float:
    """Seconds of a step in which nothing is computed: its time, less that without communication."""
    seconds = {name: statistics.median(job["seconds"][name]) for name in (method, ALONE)}
    return seconds[method] - seconds[ALONE]


def part_hidden(job: dict) -> float:
    """Of the stall without delayed rows, what is gone with them."""
    return 1 - stall(job, WITH) / stall(job, WITHOUT)


def render(results: dict) -> str:
    """What was hidden; one table per cluster and model."""
    parts = [environment_line(results)]
    for name, job in results["jobs"].items():
        parts += [f"### {name}", _facts(job), "\n".join(_verdict(job)), _table(job)]
    return "\n\n".join(parts)


def _facts(job):
    def megabytes(kind):
        return f"{job['rows'][kind] * job['columns'] * 4e-6:.3g}"

    return (
        f"Gradient of a worker's table rows: original {megabytes('original')} MB, coalesced "
        f"{megabytes('coalesced')} MB, of these prior {megabytes('prior')} MB. Forward "
        f"{job['forward'] * 1e3:.3g} ms, backward twice that; {job['dense weights'] * 4e-6:.3g} MB of dense "
        "gradients."
    )


def _verdict(job):
    part, goal = part_hidden(job), job["goal"]
    same = "to the bit" if job["same"] else "NOT THE SAME WEIGHTS"
    reached = said(part >= goal)
    return [f"- {part:.0%} of the stall hidden (goal {goal:.0%}: {reached}); results agree: {same}."]


def _table(job):
    rows = [
        [
            name,
            spread(seconds, 1e3),
            f"{stall(job, name) * 1e3:.3g}",
            spread(job["ends"][name], 1e3),
            f"{statistics.median(job['packets sent again'][name]) / job['steps']:.3g}",
            f"{statistics.median(job['timeouts'][name]) / job['steps']:.2g}",
        ]
        for name, seconds in job["seconds"].items()
    ]
    titles = ["method", "ms per step", "stall, ms", "ms at an epoch's end"]
    return table([*titles, "packets sent again per step, all nodes", "timeouts"], rows)
