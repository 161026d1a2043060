"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report

SPEED = {"LM": 2.4, "LM, real text": 2.4, "NMT": 1.25}  # goals, times as fast as the best other way
WORKERS = 8  # for which they hold
BYTES = 1.1
EXCHANGED = 4  # times the distinct rows: they and their gradients, as they are and on the wire


def _row(job: dict, way: str) -> list[str]:
    seconds, predicted = job["seconds"][way], job["predicted"].get(way)
    ratio = statistics.median(seconds) / statistics.median(job["seconds"]["columns"])
    return [
        way,
        report.spread(seconds, 1e3),
        f"{ratio:.2f}",
        "" if predicted is None else report.number(predicted["seconds"] * 1e3),
        report.number(job["bytes"][way] / 1e6),
        "" if predicted is None else report.number(predicted["bytes"] / 1e6),
    ]


def _megabytes(job: dict) -> float:
    return job["rows"] * job["columns"] * 4 / 1e6


def _goals(results: dict) -> str:
    """What was to be reached with 8 workers, and what was measured."""
    rows = []
    for job, held in zip(results["jobs"], results["held"], strict=True):
        if job["workers"] != WORKERS or job["setting"] not in SPEED:
            continue
        times = {way: statistics.median(seconds) for way, seconds in job["seconds"].items()}
        own = times.pop("columns")
        best = min(times, key=times.get)
        faster, goal = times[best] / own, SPEED[job["setting"]]
        what = f"{job['setting']}: times as fast as the best other, {best}"
        rows.append([what, f"≥ {goal}", faster, faster >= goal])
        sent = job["bytes"]["columns"] / _bytes(job)
        what = f"{job['setting']}: bytes, of 2 (P-1)/P u D s and the ids"
        rows.append([what, f"≤ {BYTES}", sent, sent <= BYTES])
        most = _megabytes(job) / WORKERS + EXCHANGED * job["distinct"] * job["columns"] * 4 / 1e6
        share = max(held["making"] + held["training"]) / 1e6 / most
        what = f"{job['setting']}: memory, of table / P and {EXCHANGED} times the distinct rows looked up"
        rows.append([what, "≤ 1", share, share <= 1])
    rows = [[what, goal, f"{found:.2f}", report.said(reached)] for what, goal, found, reached in rows]
    return report.table([f"{WORKERS} workers", "goal", "measured", ""], rows)


def _memory(held: list[dict]) -> str:
    """Peaks of the worker that holds most, in jobs of their own."""
    rows = []
    for job in held:
        workers = len(job["training"])
        peaks = [f"{max(job[when]) / 1e6:.0f}" for when in ("making", "training", "kept")]
        sizes = [f"{_megabytes(job):.0f}", f"{_megabytes(job) / workers:.0f}"]
        rows.append([f"{job['setting']}, {workers} workers", *sizes, *peaks])
    header = ["MB", "table", "table / P", "being made", "in training", "with what glibc keeps"]
    text = (
        "By how much the memory of a worker rose at most, while the divided table was made and then while it "
        "was trained, less what the same steps take with a table of a few rows: their program and the looked "
        "up rows; with `TF_ENABLE_ONEDNN_OPTS=0` and `MALLOC_MMAP_THRESHOLD_=1048576`, or TensorFlow and "
        "glibc would keep for themselves what is freed. The last column is in training without the latter."
    )
    return f"{text}\n\n{report.table(header, rows)}"


def _bytes(job: dict) -> float:
    """Least that a worker sends: ids to all others, rows of its columns to each, gradients of theirs."""
    others, workers = job["workers"] - 1, job["workers"]
    return 2 * others / workers * job["distinct"] * job["columns"] * 4 + others * job["distinct"] * 4


def render(results: dict) -> str:
    """The generated part of docs/embedding.md."""
    parts = [report.environment_line(results)]
    parts.append(
        "The table's part of a training step with SGD: milliseconds until the slowest worker is done, median "
        "(quartiles), and as a multiple of `columns`; MB sent by a worker, the mean of all. Predictions are "
        "those of the cost model, for the mean number of distinct ids, given below, with links measured in "
        "the same job: communication alone, no computation."
    )
    parts += [_goals(results), _memory(results["held"])]
    header = ["", "ms", "multiple", "predicted ms", "MB sent", "predicted MB"]
    for job in results["jobs"]:
        parts.append(
            f"### {job['setting']}, {job['workers']} workers on {job['nodes']} nodes\n\n"
            f"Table {job['rows']} × {job['columns']}; {job['ids']} ids per worker, "
            f"{job['distinct']} of them distinct. The table takes {_megabytes(job):.0f} MB, "
            f"{_megabytes(job) / job['workers']:.0f} MB per worker."
        )
        parts.append(report.table(header, [_row(job, way) for way in job["seconds"]]))
    return "\n\n".join(parts)
