"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, size, spread, table

OURS = ("all-to-all", "all-to-alls + sums", "Collectives")
TITLES = {
    "process_sets": "In a job with process sets",
    "no_process_sets": "In a job without process sets",
    "overhead": "Cost of a call, 2 workers, 16 bytes",
}


def _grouped(records: list[dict]) -> dict[tuple, dict[str, dict]]:
    """{(experiment, bytes): {variant: record}}."""
    found: dict[tuple, dict[str, dict]] = {}
    for record in records:
        key = record["experiment"], record["bytes"]
        found.setdefault(key, {})[record["variant"]] = record
    return found


def _ours(variants: dict[str, dict]) -> dict:
    return next(record for name, record in variants.items() if name in OURS)


def ratio(ours: dict, other: dict) -> float:
    """Median of the ratios within rounds: both then ran under the same load."""
    pairs = zip(ours["seconds"], other["seconds"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def _ratios(records: list[dict], experiment: str, variant: str) -> dict[int, float]:
    """Our time as a multiple of the variant's, by bytes."""
    return {
        n: ratio(_ours(variants), variants[variant])
        for (name, n), variants in _grouped(records).items()
        if name == experiment and variant in variants
    }


def _series(ratios: dict[int, float]) -> str:
    return ", ".join(f"{value:.2f} ({size(n)})" for n, value in ratios.items())


def _findings(jobs: dict[str, list[dict]], seen_wrong: list[dict]) -> list[str]:
    lines = ["Our time as a multiple of the other way's; below 1 we are faster:", ""]
    plain, with_sets = jobs["no_process_sets"], jobs["process_sets"]
    for other in ("hvd.reducescatter", "hvd.allreduce"):
        series = _series(_ratios(plain, "reduce_scatter GLOBAL", other))
        lines.append(f"- reduce-scatter over all workers against `{other}`: {series}")
    for experiment in dict.fromkeys(record["experiment"] for record in with_sets):
        if found := _ratios(with_sets, experiment, "process sets"):
            lines.append(f"- {experiment} against process sets: {_series(found)}")
    for (name, _), variants in _grouped(jobs["overhead"]).items():
        ours, bare = _ours(variants), variants["bare Horovod"]
        extra = [a - b for a, b in zip(ours["seconds"], bare["seconds"], strict=True)]
        lines.append(f"- {name}: {spread(extra, 1e6)} µs more per call than bare Horovod")
    checked = sum(record["checked"] for records in jobs.values() for record in records)
    wrong = sum(record["wrong"] for records in jobs.values() for record in records)
    lines += ["", f"Of {checked} results compared with NumPy in this run, {wrong} were wrong."]
    for record in seen_wrong:
        lines.append(
            f"Wrong results on {record['date']}: {record['experiment']} by {record['variant']}, "
            f"{size(record['bytes'])}, {record['wrong']} of {record['checked']}."
        )
    return lines


def _table(records: list[dict], job: str) -> str:
    unit, scale = ("µs", 1e6) if job == "overhead" else ("ms", 1e3)
    rows = []
    for (experiment, n), variants in _grouped(records).items():
        ours = _ours(variants)
        for name, record in variants.items():
            shown = "" if record is ours else f"{ratio(ours, record):.2f}"
            time = spread(record["seconds"], scale)
            rows.append([experiment, size(n), name, time, shown, str(record["wrong"] or "")])
    header = ["operation", "bytes per worker", "way", unit, "ours / this", "wrong results"]
    return f"### {TITLES[job]}\n\n{table(header, rows)}"


def render(results: dict) -> str:
    """What was found, and all tables: medians (quartiles) of the slowest worker's time."""
    jobs = results["jobs"]
    parts = [environment_line(results), "\n".join(_findings(jobs, results["seen_wrong"]))]
    return "\n\n".join(parts + [_table(records, job) for job, records in jobs.items()])
