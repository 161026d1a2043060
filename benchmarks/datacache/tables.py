"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report


def _cell(seconds: list[float], floor: float) -> str:
    return f"{report.spread(seconds, 1)}, {floor / statistics.median(seconds):.1f}x" if seconds else ""


def _rows(jobs: list[dict]) -> list[list[str]]:
    plain = next(job for job in jobs if job["way"] == "plain tf.data")
    floor = statistics.median(run["first"]["seconds"][1] for run in plain["runs"])
    rows = []
    for job in jobs:
        first, second, third = (
            [run["first"]["seconds"][epoch] for run in job["runs"]] for epoch in range(3)
        )
        again = [run["again"]["seconds"][0] for run in job["runs"] if run["again"]]
        rows.append([job["way"], *(_cell(x, floor) for x in (first, second, third, again))])
    return rows


def render(results: dict) -> str:
    """The generated part of docs/datacache.md."""
    storage = results["storage"]
    parts = [report.environment_line(results)]
    header = ["", "epoch 1", "epoch 2", "epoch 3", "first epoch of the next run"]
    kinds = dict.fromkeys((job["storage"], job["edge"], job["images"]) for job in results["epochs"])
    for name, edge, images in kinds:
        where = name
        if name == "central":
            where += f" storage: {storage['latency_ms']} ms per request, {storage['mbit']} Mbit/s in all"
        parts.append(
            f"### {images} JPEGs of {edge} px, {where}\n\nSeconds to read and decode all: median "
            "(quartiles), and how many times faster than plain tf.data's second epoch."
        )
        jobs = [job for job in results["epochs"] if (job["storage"], job["edge"]) == (name, edge)]
        parts.append(report.table(header, _rows(jobs)))
    rows = []
    for job in results["gather"]:
        speeds = {
            name: [job["bytes"] / x for x in values] for name, values in job["seconds"].items()
        }
        share = statistics.median(speeds["gather"]) / statistics.median(speeds["copy"])
        rows.append(
            [f"{job['edge']} px", *(report.spread(speeds[name], 1e-9) for name in ("gather", "copy"))]
            + [f"{100 * share:.0f}%"]
        )
    parts.append(
        "### Batches from memory\n\nGB/s of one process: gathering batches of samples at random, and NumPy's "
        "copies of whole batches into new arrays."
    )
    parts.append(report.table(["", "gather", "copy", "share"], rows))
    return "\n\n".join(parts) + "\n"
