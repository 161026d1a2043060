"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.dense_training.constants import BATCH, TOLERANCE
from benchmarks.report import environment_line, number, spread, table

ALONE, OURS, BARE = "no communication", "SparseStrategy(dense)", "bare Horovod"
GOAL, MODEL_GOAL = 0.03, 0.2


def _median(job: dict, method: str) -> float:
    return statistics.median(job["seconds"][method])


def _rows(cluster: dict) -> list[dict]:
    """One record per method and setting; jobs of one setting are joined."""
    workers = cluster["nodes"] * cluster["local"]
    found = {}
    for job in cluster["jobs"]:
        for method, seconds in job["seconds"].items():
            row = found.setdefault(
                (method, job["setting"]),
                {"method": method, "setting": job["setting"], "seconds": [], "difference": 0.0},
            )
            row["seconds"] = row["seconds"] + seconds
            row["difference"] = max(row["difference"], job["differences"][method])
            row["predicted"] = _predicted(cluster, job, method)
    for row in found.values():
        row["speed"] = workers * BATCH / statistics.median(row["seconds"])
    return list(found.values())


def _predicted(cluster: dict, job: dict, method: str) -> float | None:
    """Seconds of a step: the computation as measured, and the model's time for the reduction."""
    source = job if "predicted" in job else cluster["jobs"][0]
    if method == ALONE:
        return None
    reduction = source["predicted"].get(method, source["predicted"][OURS])
    return _median(source, ALONE) + reduction


def _cells(row: dict) -> list[str]:
    measured = statistics.median(row["seconds"])
    predicted = row["predicted"]
    return [
        row["method"],
        row["setting"],
        number(row["speed"]),
        spread(row["seconds"], 1e3),
        number(predicted * 1e3) if predicted else "",
        f"{measured / predicted:.2f}" if predicted else "",
        f"{row['difference']:.1g}",
    ]


def _verdict(rows: list[dict], cluster: dict) -> list[str]:
    ours = max((r for r in rows if r["method"] == OURS), key=lambda r: r["setting"] == "default")
    others = [r for r in rows if r["method"] in (BARE, "MultiWorkerMirroredStrategy")]
    best = max(others, key=lambda r: r["speed"])
    change = ours["speed"] / best["speed"] - 1
    lines = [
        f"- {OURS} with default settings does {abs(change):.1%} {'more' if change >= 0 else 'fewer'} samples "
        f"per second than the best other, {best['method']}{_with(best)} "
        f"({'within' if change >= -GOAL else 'outside'} the goal of {GOAL:.0%})."
    ]
    for job in cluster["jobs"]:
        if BARE in job["seconds"]:
            pairs = zip(job["seconds"][OURS], job["seconds"][BARE], strict=True)
            extra = [(ours - bare) for ours, bare in pairs]
            lines.append(
                f"- Against {BARE} in the same round, setting '{job['setting']}', a step of {OURS} takes "
                f"{spread(extra, 1e3)} ms more (below 0: less), "
                f"{statistics.median(extra) / _median(job, BARE):+.1%}."
            )
    missed = [
        f"{row['method']}{_with(row)}"
        for row in rows
        if row["predicted"]
        and abs(statistics.median(row["seconds"]) / row["predicted"] - 1) > MODEL_GOAL
    ]
    verdict = f"more than {MODEL_GOAL:.0%} off for {', '.join(missed)}" if missed else (
        f"within {MODEL_GOAL:.0%} for all"
    )
    wrong = [r["method"] for r in rows if (r["difference"] > TOLERANCE) != (r["method"] == ALONE)]
    right = "but the control, without communication, hold the weights of one process"
    right = f"WRONG WEIGHTS: {', '.join(wrong)}" if wrong else right
    lines += [f"- The model's prediction is {verdict}.", f"- After the checked steps all methods {right}."]
    return lines


def _with(row: dict) -> str:
    return f" ({row['setting']})" if row["setting"] else ""


def render(results: dict) -> str:
    """The answer, one table per cluster."""
    header = [
        "method",
        "setting",
        "samples/s",
        "ms per step",
        "predicted",
        "measured / predicted",
        "largest difference of a weight",
    ]
    parts = [environment_line(results)]
    for name, cluster in results["clusters"].items():
        rows = _rows(cluster)
        first = cluster["jobs"][0]
        links = {key: value * 1e6 for key, value in first["links"].items()}
        facts = (
            f"{number(first['parameters'] * 4 / 1e6)} MB of gradients; links as measured in the first job: "
            f"phase {links['phase']:.0f} µs ({links['exchange']:.0f} µs more of an all-to-all), "
            f"alpha {links['cross_alpha']:.0f} µs between and "
            f"{links['local_alpha']:.0f} µs inside nodes, "
            f"{_rate(first['links']['cross_beta'])} between and "
            f"{_rate(first['links']['local_beta'])} inside."
        )
        parts += [f"### {name}", facts, "\n".join(_verdict(rows, cluster))]
        parts.append(table(header, [_cells(row) for row in rows]))
    return "\n\n".join(parts)


def _rate(beta: float) -> str:
    return f"{8e-6 / beta:.0f} Mbit/s" if beta else "nothing"
