"""What the recipes reached, as Markdown. Pure."""

import statistics

from benchmarks import continuing
from benchmarks.report import environment_line, mean_and_deviation, number, spread, table


def _reached(values: list[float], figure: str) -> str:
    scale, unit = (100, "%") if "accuracy" in figure else (1, "")
    return f"{mean_and_deviation(values, scale)}{unit}"


def render(results: dict) -> str:
    """The document's tables."""
    jobs = results["jobs"]
    alone = [
        [
            f"`{name}`",
            job["figure"],
            _reached([job["alone"]["figure"]], job["figure"]),
            *(number(job["alone"][key]) for key in ("seconds", "samples/s", "GiB")),
        ]
        for name, job in jobs.items()
    ]
    several = [
        [
            f"`{name}`",
            job["figure"],
            _reached([run["figure"] for run in job["several"]], job["figure"]),
            spread([run["seconds"] for run in job["several"]], 1),
            *(number(statistics.median(run[key] for run in job["several"])) for key in ("samples/s", "GiB")),
            number(statistics.median(run["bytes"] for run in job["several"]) / 1e6),
        ]
        for name, job in jobs.items()
    ]
    titles = ["recipe", "figure", "reached", "s", "samples/s", "GiB"]
    seeds = max(len(job["several"]) for job in jobs.values())
    return "\n\n".join(
        [
            environment_line(results),
            *continuing.left_out(results),
            "### One process",
            "One seed; seconds of the whole command, imports, tracing and tests included.",
            table(titles, alone),
            f"### {results['cluster']}",
            f"Mean and standard deviation over {seeds} seeds, median and quartiles of seconds. Both workers "
            "share this machine's cores, so that they are no faster than one.",
            table([*titles, "MB per step, both workers, last epoch"], several),
        ]
    )
