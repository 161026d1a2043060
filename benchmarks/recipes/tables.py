"""What the recipes reached, as Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, number, spread, table


def _mean(values: list[float], figure: str) -> str:
    scale, unit = (100, "%") if "accuracy" in figure else (1, "")
    deviation = f" ± {scale * statistics.stdev(values):.3g}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):.3g}{deviation}{unit}"


def render(results: dict) -> str:
    """The document's tables."""
    recipes = results["recipes"]
    seeds = max(len(one["alone"]) for one in recipes.values())
    alone = [
        [
            f"`{name}`",
            one["figure"],
            _mean([run["figure"] for run in one["alone"]], one["figure"]),
            spread([run["seconds"] for run in one["alone"]], 1),
            number(statistics.median(run["samples/s"] for run in one["alone"])),
            number(max(run["GiB"] for run in one["alone"])),
        ]
        for name, one in recipes.items()
    ]
    several = [
        [
            f"`{name}`",
            _mean([one["several"]["figure"]], one["figure"]),
            _mean([one["alone"][0]["figure"]], one["figure"]),
            number(one["several"]["seconds"]),
            number(one["several"]["samples/s"]),
            number(one["several"]["bytes"] / 1e6),
            number(one["several"]["GiB"]),
        ]
        for name, one in recipes.items()
    ]
    return "\n\n".join(
        [
            environment_line(results),
            "### One process",
            f"Mean and standard deviation over {seeds} seeds; seconds of the whole command, tests included: "
            "median and quartiles.",
            table(["recipe", "of", "reached", "s", "samples/s", "GiB"], alone),
            f"### {results['cluster']}",
            "The first seed. All workers share this machine's cores, so that samples per second say little.",
            table(
                ["recipe", "reached", "alone", "s", "samples/s", "MB per step, all workers", "GiB, rank 0"],
                several,
            ),
        ]
    )
