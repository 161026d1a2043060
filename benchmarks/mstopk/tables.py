"""The tables of docs/mstopk.md, from the JSON of a run; nothing there is typed by hand."""

import math
from collections.abc import Iterable

Record = dict[str, object]
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs" if value < 1e4 else f"{value / 1e3:,.1f} ms"


def size(n: int) -> str:
    return f"2^{round(math.log2(n))}"


def share(record: Record) -> str:
    return f"{100 * record['k'] / record['n']:.1f} %"


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

    header = ["", *(f"{size(n)}, {share({'n': n, 'k': k})}" for n, k in columns)]
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


def threads(records: list[Record]) -> str:
    """Speed-up of two threads over one, on the wall."""
    walls = {(r["what"], r["n"], r["k"]): r["wall_us"] for r in records}
    rows = []
    for n, k in dict.fromkeys((r["n"], r["k"]) for r in records):
        gains = [
            walls[f"{what}, 1 threads", n, k] / walls[f"{what}, 2 threads", n, k]
            for what in ("one read", "mstopk")
        ]
        rows.append([size(n), share({"n": n, "k": k}), *(f"{gain:.2f}" for gain in gains)])
    return table(["n", "k / n", "one read", "mstopk"], rows)


def render(results: dict) -> str:
    """All tables of one run, each with its caption."""
    experiments = results["experiments"]
    load = [f"{results[key][0]:.1f}" for key in ("load_average_before", "load_average_after")]
    parts = [
        f"Run of {results['date']}: {results['processor']}, {results['instruction_set']}, "
        f"numpy {results['numpy']}, TensorFlow {results['tensorflow']}, one thread unless stated. "
        f"Load average {load[0]} before and {load[1]} after: the machine was "
        + ("shared, so compare ratios." if max(map(float, load)) > 1.5 else "quiet."),
        "Processor time, normal float32 data, buffers not in the cache; in brackets, multiples of "
        "`mstopk` in the same column.",
        selection(experiments["selection"], cold=True),
        "The same with one buffer, which the cache holds.",
        selection(experiments["selection"], cold=False),
        "numpy's two code paths (for `np.partition` and the scan that follows).",
        dispatch(experiments["numpy_dispatch"]),
        "Distributions and dtypes; `reads` is how often the input was read.",
        paired(experiments["inputs"], ["distribution", "dtype", "reads"], "one read", "mstopk"),
        "Error feedback in place, against the addition alone.",
        paired(experiments["fused"], [], "residual += grad", "mstopk_error_feedback"),
        "Gain of two threads over one, by the clock on the wall.",
        threads(experiments["threads"]),
    ]
    return "\n\n".join(parts)


def insert(document: str, results: dict) -> str:
    """Returns `document` with the tables between its marks renewed."""
    head, found, tail = document.partition(BEGIN)
    if not found or END not in tail:
        raise ValueError(f"the document must contain {BEGIN!r} and after it {END!r}.")
    return f"{head}{BEGIN}\n\n{render(results)}\n\n{tail[tail.index(END):]}"
