"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report

FLOORS = {"norms": "one read", "steps": "SGD with momentum"}


def _ratio(job: dict, one: str, other: str) -> float:
    return statistics.median(job["seconds"][one]) / statistics.median(job["seconds"][other])


def _cell(job: dict, name: str, floor: str) -> str:
    if name not in job["seconds"]:
        return ""
    return f"{report.spread(job['seconds'][name], 1e3)}, {_ratio(job, name, floor):.2f}"


def _workers(job: dict) -> str:
    return f"{job['workers']} worker{'s' if job['workers'] > 1 else ''}"


def _by_workers(jobs: list[dict], floor: str) -> str:
    """Rows are ways, columns numbers of workers."""
    names = list(dict.fromkeys(name for job in jobs for name in job["seconds"]))
    header = ["", *(_workers(job) for job in jobs)]
    return report.table(header, [[name, *(_cell(job, name, floor) for job in jobs)] for name in names])


def _goals(results: dict) -> str:
    """What was to be reached, and what was measured: a row for each model and number of workers."""
    rows = []
    for job in results["norms"]:
        where = f"{job['model']}, {_workers(job)}"
        if job["workers"] == 1:
            share = report.paired_ratio(job["seconds"], "one read", "fused")
            rows.append([f"{where}: fused norms, of the speed of one read", "0.70", share, share >= 0.7])
        else:
            ways = ("divided", "fused, layer by layer")
            slower = max(report.paired_ratio(job["seconds"], "auto", way) for way in ways)
            what = f'{where}: "auto", of the time of the faster of divided norms and whole ones'
            rows.append([what, "1.02", slower, slower <= 1.02])
        if job["workers"] == 8:
            fused = ("fused", "fused, layer by layer")
            faster = min(report.paired_ratio(job["seconds"], way, "divided") for way in fused)
            what = f"{where}: divided, times faster than the faster of the fused ways"
            rows.append([what, "2", faster, faster >= 2])
    for job in results["steps"]:
        where = f"{job['model']}, {_workers(job)}"
        if job["workers"] == 1:
            faster = report.paired_ratio(job["seconds"], "LARS by Keras operations", "LARS, fused")
            rows.append([f"{where}: LARS, times faster than by Keras operations", "2", faster, faster >= 2])
        else:
            slower = report.paired_ratio(job["seconds"], "LARS, auto", "LARS, fused")
            rows.append([f'{where}: a step with "auto", of the time without', "1.02", slower, slower <= 1.02])
    rows = [[what, goal, f"{found:.2f}", report.said(reached)] for what, goal, found, reached in rows]
    return report.table(["", "goal", "measured: median of the rounds' ratios", ""], rows)


def _missing(results: dict, model: str) -> list[str]:
    """What was measured of other models, and not of this one."""
    found = {
        (kind, job["workers"], job["model"]) for kind in ("norms", "steps") for job in results[kind]
    }
    jobs = sorted({(kind, workers) for kind, workers, _ in found})
    return [f"{kind} with {workers} workers" for kind, workers in jobs if (kind, workers, model) not in found]


def render(results: dict) -> str:
    """The generated part of docs/pto.md."""
    parts = [report.environment_line(results), "### Goals", _goals(results)]
    for model in dict.fromkeys(job["model"] for job in results["norms"]):
        norms, steps = (
            [job for job in results[kind] if job["model"] == model] for kind in ("norms", "steps")
        )
        parts.append(
            f"### Norms of {model}\n\nMilliseconds of the slowest worker: median (quartiles), and the "
            "median as a multiple of one read of weights and gradients."
        )
        parts.append(_by_workers(norms, FLOORS["norms"]))
        parts += [
            f"With {_workers(job)} \"auto\" "
            f"{'divides' if job['auto']['divide'] else 'does not divide'}: {job['auto']['reason']}."
            for job in norms
        ]
        if steps:
            parts.append(
                f"### Steps of {model}\n\nMilliseconds of the slowest worker, the sum of the gradients "
                "over the workers included: median (quartiles), and the median as a multiple of SGD's."
            )
            parts.append(_by_workers(steps, FLOORS["steps"]))
        missing = ", ".join(_missing(results, model))
        if missing:
            parts.append(f"Left out, since memory is too small: {missing}.")
    return "\n\n".join(parts)
