"""The report's pictures."""

import pathlib

import matplotlib
from matplotlib.figure import Figure

from benchmarks.end_to_end.names import DENSE_WAYS, SPARSE_WAYS
from benchmarks.end_to_end.tables import median

_COLORS = dict(zip((*DENSE_WAYS, *SPARSE_WAYS), matplotlib.color_sequences["tab20"], strict=False))


def _save(figure: Figure, path: pathlib.Path) -> None:
    # Letters, not their outlines; the same file of the same measurements.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure.savefig(path, metadata={"Date": None})


def speed(results: dict, path: pathlib.Path) -> None:
    """Samples per second: a group of bars for each model, a bar for each way."""
    jobs, samples = results["jobs"], results["workers"] * results["rows"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    ways = [way for way in _COLORS if all(way in job["seconds"] for job in jobs.values())]
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        heights = [samples / median(job, way) for job in jobs.values()]
        places = [group + (i - len(ways) / 2) * width for group in range(len(jobs))]
        axes.bar(places, heights, width, align="edge", label=way, color=_COLORS[way])
    axes.set_xticks(range(len(jobs)), list(jobs))
    axes.set_ylabel("samples per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", ncols=2)
    _save(figure, path)


def learning(results: dict, path: pathlib.Path) -> None:
    """Loss on the left, accuracy on the right, by seconds of training: a line for each seed."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, column, name in zip(figure.subplots(1, 2), (1, 2), ("loss", "accuracy"), strict=True):
        for way, seeds in results["learning"].items():
            for seed, points in enumerate(seeds):
                label = way if seed == 0 else None
                seconds, values = [p[0] for p in points], [p[column] for p in points]
                axes.plot(seconds, values, ".-", color=_COLORS[way], label=label, alpha=0.8)
        axes.set(xlabel="s", title=name.capitalize())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.axes[0].set_yscale("log")
    figure.axes[0].legend(frameon=False)
    _save(figure, path)
