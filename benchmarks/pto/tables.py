"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report


def _cell(seconds: dict[str, list[float]], name: str, floor: str) -> str:
    if name not in seconds:
        return ""
    ratio = statistics.median(seconds[name]) / statistics.median(seconds[floor])
    return f"{report.spread(seconds[name], 1e3)}, {ratio:.2f}"


def _workers(job: dict) -> str:
    return f"{job['workers']} worker{'s' if job['workers'] > 1 else ''}"


def _by_workers(jobs: list[dict]) -> str:
    """Rows are ways, columns numbers of workers."""
    names = list(dict.fromkeys(name for job in jobs for name in job["seconds"]))
    header = ["", *(_workers(job) for job in jobs)]
    rows = [[name, *(_cell(job["seconds"], name, "one read") for job in jobs)] for name in names]
    return report.table(header, rows)


def render(results: dict) -> str:
    """The generated part of docs/pto.md."""
    parts = [report.environment_line(results)]
    for model in dict.fromkeys(job["model"] for job in results["norms"]):
        jobs = [job for job in results["norms"] if job["model"] == model]
        parts.append(
            f"### Norms of {model}\n\nMilliseconds of the slowest worker: median (quartiles), and the "
            "median as a multiple of one read of weights and gradients."
        )
        parts.append(_by_workers(jobs))
        parts += [
            f"With {_workers(job)} \"auto\" "
            f"{'divides' if job['auto']['divide'] else 'does not divide'}: {job['auto']['reason']}."
            for job in jobs
        ]
    parts.append(
        "### Whole steps on one worker\n\nMilliseconds: median (quartiles), and the median as a multiple "
        "of SGD's."
    )
    names = list(results["steps"][0]["seconds"])
    rows = [
        [job["model"], *(_cell(job["seconds"], name, "SGD with momentum") for name in names)]
        for job in results["steps"]
    ]
    parts.append(report.table(["", *names], rows))
    return "\n\n".join(parts)
