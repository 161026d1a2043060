"""The tables of docs/mstopk.md, from the JSON of a run; nothing there is typed by hand."""

import json

from benchmarks.mstopk import gpu_tables
from benchmarks.mstopk.cells import column, share, size, verdicts
from benchmarks.mstopk.names import ADDITION, BURST, CHECKED, EAGERLY
from benchmarks.report import environment_line, results_file, table

Record = dict[str, object]


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs" if value < 1e4 else f"{value / 1e3:,.1f} ms"


def selection(records: list[Record], cold: bool) -> str:
    """One row per contender: median processor time, and in brackets multiples of mstopk's."""
    records = [record for record in records if record["cold"] == cold]
    columns = list(dict.fromkeys((r["n"], r["k"]) for r in records))
    names = list(dict.fromkeys(r["what"] for r in records))
    times = {(r["what"], r["n"], r["k"]): r["cpu_us"] for r in records}

    def cell(what: str, n: int, k: int) -> str:
        if (what, n, k) not in times:
            return ""
        time = times[what, n, k]
        return f"{microseconds(time)} ({time / times['mstopk', n, k]:.2f})"

    header = ["", *(column(n, k) for n, k in columns)]
    return table(header, [[what, *(cell(what, *c) for c in columns)] for what in names])


def dispatch(records: list[Record]) -> str:
    rows = [
        [size(r["n"]), share(r), r["numpy_disabled"] or "nothing", microseconds(r["cpu_us"])]
        for r in records
        if r["what"] == "np.partition"
    ]
    return table(["n", "k / n", "numpy features disabled", "np.partition"], rows)


def paired(records: list[Record], facts: list[str], floor: str, ours: str) -> str:
    """One row per input: what was timed against its floor, which precedes it in the records."""
    rows = []
    for below, record in zip(records[::2], records[1::2], strict=True):
        assert (below["what"], record["what"]) == (floor, ours)
        times = [microseconds(r["cpu_us"]) for r in (below, record)]
        ratio = f"{record['cpu_us'] / below['cpu_us']:.2f}"
        rows.append(
            [size(record["n"]), share(record), *(str(record[f]) for f in facts), *times, ratio]
        )
    return table(["n", "k / n", *facts, floor, ours, "ratio"], rows)


def gains(records: list[Record], what: str) -> dict[tuple[int, int], float]:
    """How many times as fast as one thread two are, on the wall, by (n, k)."""
    walls = {(r["what"], r["n"], r["k"]): r["wall_us"] for r in records}
    return {
        (n, k): time / walls[f"{what}, 2 threads", n, k]
        for (name, n, k), time in walls.items()
        if name == f"{what}, 1 threads"
    }


def threads(records: list[Record]) -> str:
    """Speed-up of two threads over one."""
    read, ours = gains(records, "one read"), gains(records, "mstopk")
    rows = [[*row(*at), f"{read[at]:.2f}", f"{ours[at]:.2f}"] for at in read]
    return table(["n", "k / n", "one read", "mstopk"], rows)


def by_row(records: list[Record]) -> dict[tuple[int, int], dict[str, float]]:
    """Processor time of each contender, by (n, k)."""
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for r in records:
        rows.setdefault((r["n"], r["k"]), {})[r["what"]] = r["cpu_us"]
    return rows


def fused(records: list[Record]) -> str:
    """One row per size, in brackets multiples of the addition alone."""
    rows = by_row(records)
    names = list(next(iter(rows.values())))
    return table(
        ["n", "k / n", *names],
        [
            [*row(n, k), *(f"{microseconds(t[x])} ({t[x] / t[ADDITION]:.2f})" for x in names)]
            for (n, k), t in rows.items()
        ],
    )


def short(records: list[Record]) -> str:
    """One row per size, a call's time."""
    rows = by_row(records)
    names = list(next(iter(rows.values())))
    return table(
        ["n", "k / n", *names],
        [[*row(n, k), *(microseconds(t[x] / BURST) for x in names)] for (n, k), t in rows.items()],
    )


def row(n: int, k: int) -> list[str]:
    return [size(n), share({"n": n, "k": k})]


def goals(experiments: dict[str, list[Record]]) -> str:
    """What was to be reached on a CPU, for normal float32 data, and the worst that was measured."""
    cold = by_row([r for r in experiments["selection"] if r["cold"]])
    large = {(n, k): times for (n, k), times in cold.items() if n >= 1 << 24}

    def of_read(per: int, what: str) -> float:
        return min(t["one read"] / t[what] for (n, k), t in large.items() if k == n // per)

    gain, read_gain = (
        min(x for (n, _), x in gains(experiments["threads"], what).items() if n >= 1 << 24)
        for what in ("mstopk", "one read")
    )
    than_top_k = {
        what: min(
            t["tf.math.top_k"] / t[what]
            for (n, k), t in large.items()
            if "tf.math.top_k" in t and k == n // 1000
        )
        for what in ("mstopk", EAGERLY, "one read")
    }
    feedback: dict[str, list] = {}
    for (n, k), times in by_row(experiments["fused"]).items():
        if n >= 1 << 24:
            feedback.setdefault(share({"n": n, "k": k}), []).append(times)
    [placements, *_] = ([w for w in t[0] if w not in (ADDITION, CHECKED)] for t in feedback.values())
    brief = by_row(experiments["short"])[1 << 18, (1 << 18) // 1000][EAGERLY] / BURST
    rows = [
        *(
            (f"k/n = {part}: {what}: of the speed of one read, at least", least, of_read(per, what))
            for part, per, least in (("0.1 %", 1000, 0.7), ("1 %", 100, 0.5))
            for what in ("mstopk", EAGERLY)
        ),
        *(
            (
                f"n = 2^24, k/n = 0.1 %: {what}: times as fast as `tf.math.top_k` "
                f"(one read: {than_top_k['one read']:.1f}), at least",
                20,
                than_top_k[what],
            )
            for what in ("mstopk", EAGERLY)
        ),
        (f"two threads: times as fast as one (one read: {read_gain:.2f}), at least", 1.6, gain),
        *(
            (f"k/n = {part}: error feedback {what}: times the addition alone, at most", 1.4, worst)
            for what in placements
            for part, rows_of in feedback.items()
            for worst in [max(t[what] / t[ADDITION] for t in rows_of)]
        ),
        ("n = 2^18, k/n = 0.1 %, through TensorFlow, in bursts: µs, at most", 60, brief),
    ]
    return table(["goal; n >= 2^24 unless stated", "", "worst measured", ""], verdicts(rows))


def elsewhere() -> str:
    """The goals on a machine of another maker, whose memory is slower beside its processor."""
    results = json.loads(results_file("mstopk").with_name("xeon.json").read_text())
    return (
        "Another machine, before all contenders read the same memory: what calls through TensorFlow are "
        "compared with are reads of numpy's, which lies in larger pages. "
        f"{environment_line(results)}\n\n{goals(results['experiments'])}"
    )


def render(results: dict) -> str:
    """All tables of one run on a CPU, each with its caption, and what is published of a GPU."""
    experiments = results["experiments"]
    parts = [
        environment_line(results),
        f"Instructions: {results['instruction set']}. One thread unless stated.",
        goals(experiments),
        elsewhere(),
        "Processor time, normal float32 data, buffers not in the cache; in brackets, multiples of "
        "`mstopk` in the same column.",
        selection(experiments["selection"], cold=True),
        "The same with one buffer, which the cache holds.",
        selection(experiments["selection"], cold=False),
        "numpy's two code paths (for `np.partition` and the scan that follows).",
        dispatch(experiments["numpy_dispatch"]),
        "Distributions and dtypes; `reads` is how often the input was read.",
        paired(experiments["inputs"], ["distribution", "dtype", "reads"], "one read", "mstopk"),
        "Error feedback, by where the new residual goes (into grad: the buffers change roles from call "
        "to call, and sums grow; into residual: nothing may be written before all of grad is checked, which "
        f"makes '{CHECKED}' the floor); in brackets, multiples of the addition alone.",
        fused(experiments["fused"]),
        f"Short vectors, in bursts of {BURST} calls of one way, and what TensorFlow takes to call anything.",
        short(experiments["short"]),
        "Gain of two threads over one, by the clock on the wall.",
        threads(experiments["threads"]),
        gpu_tables.published(),
    ]
    return "\n\n".join(parts)
