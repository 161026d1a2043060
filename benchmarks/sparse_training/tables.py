"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, paired_ratio, said, spread, table

ALONE, AUTO = "no communication", "Auto"
SPARSE = ("HiTopK", "ShardedTopK", "ShardedTopK, fp16 + delta", "ShardedTopK applying 3 K, fp16 + delta")
FASTER, SLOWER = 1.4, 0.02  # the goals: of the best sparse, and of Auto where nothing is to be gained


def verdict(name: str, job: dict) -> list[str]:
    """Lines on one model."""
    medians = {method: statistics.median(seconds) for method, seconds in job["seconds"].items()}
    dense = {m: s for m, s in medians.items() if m not in (ALONE, AUTO, *SPARSE)}
    best, sparse = min(dense, key=dense.get), min(SPARSE, key=medians.get)
    gain = dense[best] / medians[sparse]
    lines = [f"- {name}: {sparse} does {gain:.2f} times the steps of the best dense setting, {best}; "]
    if medians[ALONE] < dense[best] / 2:
        lines[0] += f"its computation takes less than half (goal {FASTER:g}: {said(gain >= FASTER)})."
        auto = paired_ratio(job["seconds"], AUTO, best)
        lines.append(f"- {name}: Auto takes {auto:.3f} times the time of the best dense setting.")
    else:
        lines[0] += "computation dominates."
        close = job["close"]["seconds"]
        best = min((m for m in close if m != AUTO), key=lambda m: statistics.median(close[m]))
        auto = paired_ratio(close, AUTO, best)
        lines.append(
            f"- {name}: in {len(close[AUTO])} rounds with few methods Auto takes {auto:.3f} times the time "
            f"of the best dense setting, {best} (goal {1 + SLOWER:g} at most: {said(auto <= 1 + SLOWER)})."
        )
    differ = (*job["differ"], *job.get("close", {}).get("differ", ()))
    wrong = [method for method in differ if method != ALONE]
    if wrong:
        lines.append(f"- {name}: WORKERS HOLD DIFFERENT WEIGHTS by {', '.join(wrong)}.")
    if ALONE not in job["differ"]:
        lines.append(f"- {name}: the comparison of weights found none where there had to be some.")
    return lines


def render(results: dict) -> str:
    """The answer, one table per cluster."""
    parts = [environment_line(results), f"Density {results['density']:.1%}."]
    for name, jobs in results["clusters"].items():
        lines = [line for model, job in jobs.items() for line in verdict(model, job)]
        parts += [f"### {name}", "\n".join(lines)]
        header = ["method", *(f"{m}, {job['parameters'] / 1e6:.2f} M: ms" for m, job in jobs.items())]
        methods = list(next(iter(jobs.values()))["seconds"])
        rows = [[m, *(spread(job["seconds"][m], 1e3) for job in jobs.values())] for m in methods]
        parts.append(table(header, rows))
    return "\n\n".join(parts)
