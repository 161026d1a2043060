"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, number, said, spread, table
from benchmarks.scheduling_2d.settings import ALONE, BOTH, GATHERED, REDUCED, WITH, WITHOUT

TOLERANCE = 1e-5  # of weights, where sums are added up in another order


def stall(job: dict, method: str) -> float:
    """Seconds of a step in which nothing is computed: its time, less that without communication."""
    seconds = {name: statistics.median(job["seconds"][name]) for name in (method, ALONE)}
    return seconds[method] - seconds[ALONE]


def part_hidden(job: dict, method: str) -> float:
    """Of the stall without scheduling, what is gone with `method`."""
    return 1 - stall(job, method) / stall(job, WITHOUT)


def render(results: dict) -> str:
    """What was hidden; one table per cluster and model."""
    parts = [environment_line(results), throughput(results["jobs"])]
    for name, job in results["jobs"].items():
        parts += [f"### {name}", _facts(job), verdict(job), _table(job)]
    return "\n\n".join(parts)


def throughput(jobs: dict) -> str:
    """Words that all workers train per second, and how many times the better of Horovod's ways."""
    rows = []
    for name, job in jobs.items():
        seconds = {way: statistics.median(s) for way, s in (job["seconds"] | job["horovod"]).items()}
        best = min(seconds[way] for way in job["horovod"])
        rows.append([name])
        for way in (REDUCED, GATHERED, WITHOUT, WITH, BOTH):
            cell = f"{job['words'] / seconds[way]:,.0f} ({best / seconds[way]:.2f})" if way in seconds else ""
            rows[-1].append(cell)
    text = (
        "Words per second, all workers together, and in brackets times as many as with the better of "
        "Horovod's ways. A table whose all-reduce would take a minute has none."
    )
    return f"### Throughput\n\n{text}\n\n" + table(["model", REDUCED, GATHERED, WITHOUT, WITH, BOTH], rows)


def _facts(job):
    def megabytes(kind):
        return number(job["rows"][kind] * job["columns"] * 4e-6)

    hidden = 1 - job["rows"]["prior"] / job["rows"]["coalesced"]
    return (
        f"Gradient of a worker's table rows: original {megabytes('original')} MB, coalesced "
        f"{megabytes('coalesced')} MB, of these prior {megabytes('prior')} MB: of what rows take, "
        f"{hidden:.0%} can be hidden at most. Forward {number(job['forward'] * 1e3)} ms, backward twice "
        f"that; {number(job['dense weights'] * 4e-6)} MB of dense gradients."
    )


def verdict(job: dict) -> str:
    """Whether the goal is reached, and whether all ways have given the same weights."""
    rows, both, goal = part_hidden(job, WITH), part_hidden(job, BOTH), job["goal"]
    differ = job["differences"]
    right = max(differ[WITH], differ[BOTH], differ[GATHERED]) < TOLERANCE < differ[ALONE]
    of_rows = f"within {differ[WITH]:.1e}" if differ[WITH] else "to the bit"
    same = f"{of_rows}, with DeAR within {differ[BOTH]:.1e}, Horovod's within {differ[GATHERED]:.1e}"
    return (
        f"- {both:.0%} of the stall hidden (goal {goal:.0%}: {said(both >= goal)}), {rows:.0%} by delayed "
        f"rows alone; results agree: {same if right else 'NOT THE SAME WEIGHTS'}."
    )


def _table(job):
    rows = [
        [
            name,
            spread(seconds, 1e3),
            number(stall(job, name) * 1e3),
            spread(job["ends"][name], 1e3),
            number(statistics.median(job["packets sent again"][name]) / job["steps"]),
            number(statistics.median(job["timeouts"][name]) / job["steps"]),
        ]
        for name, seconds in job["seconds"].items()
    ]
    titles = ["method", "ms per step", "stall, ms", "ms at an epoch's end"]
    return table([*titles, "packets sent again per step, all nodes", "timeouts"], rows)
