"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report


def _row(job: dict, way: str) -> list[str]:
    seconds, predicted = job["seconds"][way], job["predicted"].get(way)
    ratio = statistics.median(seconds) / statistics.median(job["seconds"]["columns"])
    return [
        way,
        report.spread(seconds, 1e3),
        f"{ratio:.2f}",
        "" if predicted is None else f"{predicted['seconds'] * 1e3:.3g}",
        f"{job['bytes'][way] / 1e6:.3g}",
        "" if predicted is None else f"{predicted['bytes'] / 1e6:.3g}",
        f"{job['memory'][way] / 1e6:.0f}",
    ]


def _megabytes(job: dict) -> float:
    return job["rows"] * job["columns"] * 4 / 1e6


def render(results: dict) -> str:
    """The generated part of docs/embedding.md."""
    parts = [report.environment_line(results)]
    parts.append(
        "The table's part of a training step with SGD: milliseconds until the slowest worker is done, median "
        "(quartiles), and as a multiple of `columns`; MB sent by a worker; by how many MB the memory "
        "of the first rose. Predictions are those of the cost model with the links measured in "
        "the same job: communication alone, no computation."
    )
    header = ["", "ms", "multiple", "predicted ms", "MB sent", "predicted MB", "MB held"]
    for job in results["jobs"]:
        parts.append(
            f"### {job['setting']}, {job['workers']} workers on {job['nodes']} nodes\n\n"
            f"Table {job['rows']} × {job['columns']}; {job['ids']} ids per worker, "
            f"{job['distinct']} of them distinct. The table takes {_megabytes(job):.0f} MB, "
            f"{_megabytes(job) / job['workers']:.0f} MB per worker."
        )
        parts.append(report.table(header, [_row(job, way) for way in job["seconds"]]))
    return "\n\n".join(parts)
