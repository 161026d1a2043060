"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, number, said, spread, table

RING, FP16, TORUS, FLAT, OURS = "Horovod ring", "Horovod ring, fp16", "Torus2D", "TopKAllGather", "HiTopK"
FASTER, MODEL_GOAL = 8.0, 0.2
REFERENCE = 25_000_000  # elements for which the goals were set
BYTES = {  # of the bound, at most
    "ShardedTopK": 2.2,
    "ShardedTopK, fp16 + delta": 1.2,
    "ShardedTopK applying 3 K, fp16 + delta": 1.2,
}


def bound(record: dict, nodes: int) -> float:
    """Bytes a node's link must carry: K values and indices of each of the other nodes' shares."""
    return 8 * record["density"] * record["n"] * (nodes - 1) / nodes


def _median(record: dict) -> float:
    return statistics.median(record["seconds"])


def _bytes(record: dict) -> float:
    return statistics.median(record["link_bytes"])


def _of_bound(record: dict, cluster: dict) -> float:
    return _bytes(record) / bound(record, cluster["nodes"])


def _off(record: dict) -> float | None:
    """Measured by predicted, where there is a prediction."""
    return _median(record) / record["predicted"] if "predicted" in record else None


def _parts(record: dict) -> str:
    whole = sum(record["parts"].values())
    return ", ".join(f"{kind} {seconds / whole:.0%}" for kind, seconds in record["parts"].items())


def _rows(cluster: dict, n: int) -> list[list[str]]:
    records = [record for record in cluster["records"] if record["n"] == n]
    ring = next(record for record in records if record["method"] == RING)
    rows = []
    for record in records:
        of_bound = _of_bound(record, cluster) if record["density"] else None
        off = _off(record)
        rows.append(
            [
                record["method"],
                f"{record['density']:.1%}" if record["density"] else "",
                spread(record["seconds"], 1e3),
                f"{_median(ring) / _median(record):.2f}",
                number(_bytes(record) / 1e6),
                f"{of_bound:.2f}" if of_bound else "",
                f"{off:.2f}" if off else "",
                _parts(record),
            ]
        )
    return rows


def _cell(cluster: dict, n: int, density: float) -> dict[str, dict]:
    """By method, the records of `n` elements at this density, and of what has none."""
    return {r["method"]: r for r in cluster["records"] if r["n"] == n and r["density"] in (None, density)}


def _everywhere(cluster: dict) -> list[str]:
    """In how many cells the goals hold that are judged by the large ones, and whether sums are right."""
    cells = [
        _cell(cluster, *key)
        for key in dict.fromkeys((r["n"], r["density"]) for r in cluster["records"] if r["density"])
    ]
    times = [{name: _median(record) for name, record in cell.items()} for cell in cells]
    fast = sum(min(t[RING], t[TORUS]) >= FASTER * t[OURS] for t in times)
    ahead = sum(t[OURS] < t[FLAT] for t in times)
    small = [
        f"{name} within {goal:g} times the bound in "
        f"{sum(_of_bound(cell[name], cluster) <= goal for cell in cells)}"
        for name, goal in BYTES.items()
    ]
    off, near = _predicted(cluster["records"])
    wrong = cluster["wrong"]
    return [
        f"- Of all {len(cells)} sizes and densities, {OURS} is {FASTER:g} times as fast as both in {fast} "
        f"and ahead of {FLAT} in {ahead}; {', '.join(small)}.",
        f"- {_said_of_model(off, near)}, in the median {statistics.median(off):.2f}.",
        f"- Sent and kept {'make the whole for all methods' if not wrong else f'DIFFER for {wrong}'}.",
    ]


def _judged(cluster: dict) -> list[int]:
    """Numbers of elements at which goals are judged: from the reference on, or the largest of less."""
    sizes = {record["n"] for record in cluster["records"]}
    return sorted(n for n in sizes if n >= min(REFERENCE, max(sizes)))


def _verdict(cluster: dict, n: int) -> list[str]:
    by = _cell(cluster, n, 0.01)
    times = {name: _median(record) for name, record in by.items()}
    over_ring, over_torus = times[RING] / times[OURS], times[TORUS] / times[OURS]
    reached = said(min(over_ring, over_torus) >= FASTER)
    ahead = times[OURS] < times[FLAT]
    lines = [
        f"- {n:,} elements at 1 %: {OURS} takes {over_ring:.1f} times less than the ring and "
        f"{over_torus:.1f} times less than {TORUS} (goal {FASTER:g}: {reached}), "
        f"{times[FP16] / times[OURS]:.1f} times less than the ring with values of 16 bits, and is "
        f"{'ahead of' if ahead else 'behind'} {FLAT}, which takes {times[FLAT] / times[OURS]:.2f} times as "
        f"long (goal ahead: {said(ahead)})."
    ]
    for name, goal in BYTES.items():
        ratio = _of_bound(by[name], cluster)
        verdict = said(ratio <= goal)
        lines.append(f"- {name}'s bytes are {ratio:.2f} times the lower bound (goal {goal:g}: {verdict}).")
    off, near = _predicted(list(by.values()))
    verdict = said(near == len(off))
    return [*lines, f"- {_said_of_model(off, near)} (goal: all, {verdict})."]


def _predicted(records: list[dict]) -> tuple[list[float], int]:
    """(measured by predicted, where there is a prediction; how many of these are near enough)"""
    off = [ratio for record in records if (ratio := _off(record))]
    return off, sum(abs(ratio - 1) <= MODEL_GOAL for ratio in off)


def _said_of_model(off: list[float], near: int) -> str:
    return (
        f"The model's prediction is within {MODEL_GOAL:.0%} for {near} of {len(off)}, what was measured "
        f"{min(off):.2f} to {max(off):.2f} times what it says"
    )


def render(results: dict) -> str:
    """What was found, and one table per cluster and number of elements."""
    header = ["method", "density", "ms", "ring / this", "MB per link", "of the bound"]
    header += ["measured / predicted", "parts of the time"]
    parts = [environment_line(results)]
    for name, cluster in results["clusters"].items():
        links = cluster["links"]
        facts = (
            f"Links as measured: phase {links['phase'] * 1e6:.0f} µs, of an all-to-all "
            f"{links['exchange'] * 1e6:.0f} µs more, "
            f"alpha {links['cross_alpha'] * 1e6:.0f} µs between nodes, "
            f"{8e-6 / links['cross_beta']:.0f} Mbit/s."
        )
        verdicts = [line for n in _judged(cluster) for line in _verdict(cluster, n)]
        parts += [f"### {name}", facts, "\n".join(verdicts + _everywhere(cluster))]
        for n in sorted({record["n"] for record in cluster["records"]}):
            parts += [f"{n:,} elements", table(header, _rows(cluster, n))]
    return "\n\n".join(parts)
