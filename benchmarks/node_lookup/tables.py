"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report

TOGETHER, ALONE, BY_ROWS = "a node as one", "each worker for itself", "by rows"


def seconds(job: dict, way: str) -> list[float]:
    """Of each step."""
    return [step[0] for step in job["steps"][way]]


def megabytes(job: dict, way: str) -> list[float]:
    """That a worker sends in a step, the mean: within its node, to other nodes."""
    return [statistics.mean(step[i] for step in job["steps"][way]) / 1e6 for i in (1, 2)]


def _said(job: dict) -> str:
    own, of_node = job["distinct"]
    times = {way: seconds(job, way) for way in job["steps"]}
    alone, rows = (report.paired_ratio(times, way, TOGETHER) for way in (ALONE, BY_ROWS))
    less = 1 - megabytes(job, TOGETHER)[1] / megabytes(job, ALONE)[1]
    return (
        f"- {_title(job)}: {own} ids of a worker are distinct, {of_node} of a node. A node as one sends "
        f"{less:.0%} less to other nodes than its workers one by one; their step takes {alone:.2f} times as "
        f"long, that of a table by rows {rows:.2f} times."
    )


def _title(job: dict) -> str:
    return f"{job['setting']}, {job['nodes']} nodes of {job['local']}"


def _table(job: dict) -> str:
    rows = [
        [way, report.spread(seconds(job, way), 1e3), *map(report.number, megabytes(job, way))]
        for way in job["steps"]
    ]
    return report.table(["", "ms", "MB sent within the node", "MB sent to other nodes"], rows)


def render(results: dict) -> str:
    """The answer, and a table per job."""
    parts = [report.environment_line(results), "\n".join(map(_said, results["jobs"]))]
    for job in results["jobs"]:
        size = f"Table {job['rows']} × {job['columns']}; {job['ids']} ids per worker."
        parts.append(f"### {_title(job)}\n\n{size}\n\n{_table(job)}")
    return "\n\n".join(parts)
