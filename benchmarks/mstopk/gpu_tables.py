"""The GPU's part of docs/mstopk.md, from what custom_ops/mstopk/gpu_check/run.sh has measured."""

import json

from benchmarks.mstopk.cells import column, verdicts
from benchmarks.report import number, results_file, table

Times = dict[tuple[int, int], float]

OTHER_INPUTS = ("Laplace", "lognormal", "clipped normal", "zeros")


def by_contender(timings: list[dict]) -> dict[str, Times]:
    """Median microseconds, by (n, k)."""
    found: dict[str, Times] = {}
    for timing in timings:
        found.setdefault(timing["what"], {})[timing["n"], timing["k"]] = timing["median_us"]
    return found


def goals(times: dict[str, Times]) -> str:
    """What was to be reached on an H200, for normal float32 data."""
    ours, fused = times["mstopk"], times["mstopk_error_feedback"]

    theirs = [found for what, found in times.items() if what.startswith("cub::DeviceTopK")]

    def over_cub(per: int) -> float:
        """The least gain over the faster of its two uses, for n >= 2^24."""
        return min(
            min(found[n, k] for found in theirs) / time
            for (n, k), time in ours.items()
            if n >= 1 << 24 and k == n // per
        )

    def at(found: Times, log_n: int) -> float:
        return found[1 << log_n, (1 << log_n) // 1000]

    rows = [
        ("n = 2^27, k/n = 0.1 %: µs, at most", 160, at(ours, 27)),
        ("n = 2^20, k/n = 0.1 %: µs, at most", 12, at(ours, 20)),
        ("error feedback, n = 2^27, k/n = 0.1 %: µs, at most", 450, at(fused, 27)),
    ]
    if theirs:  # older headers have none
        faster = "times as fast as `cub::DeviceTopK`, at least"
        rows += [
            (f"n >= 2^24, k/n = {100 / per:g} %: {faster}", goal, over_cub(per))
            for per, goal in ((1000, 3), (100, 8))
        ]
    return table(["goal", "", "measured", ""], verdicts(rows))


def contenders(times: dict[str, Times]) -> str:
    """One row per contender; in brackets, multiples of mstopk's time."""
    ours = times["mstopk"]

    def cell(found: Times, at: tuple[int, int]) -> str:
        return f"{number(found[at])} ({found[at] / ours[at]:.2f})" if at in found else ""

    header = ["", *(column(n, k) for n, k in ours)]
    rows = [
        [what.replace("|", r"\|"), *(cell(found, at) for at in ours)]
        for what, found in times.items()
    ]
    return table(header, rows)


def other_inputs(times: dict[str, Times]) -> str:
    """One row per distribution, one column per k."""
    named = {"normal": times["mstopk"]} | {name: times[f"mstopk, {name}"] for name in OTHER_INPUTS}
    columns = list(named["zeros"])
    header = ["", *(column(n, k) for n, k in columns)]
    return table(
        header, [[name, *(number(found[at]) for at in columns)] for name, found in named.items()]
    )


def render(record: dict) -> str:
    """Facts and tables of one run of gpu_check."""
    times = by_contender(record["timings"])
    rest = {f"mstopk, {name}" for name in OTHER_INPUTS}
    compared = {what: found for what, found in times.items() if what not in rest}
    cuda, cub = record["cuda"], record["cub"]
    facts = [
        f"{record['device']}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        f"CUB {cub // 100000}.{cub // 100 % 1000}.{cub % 100}",
        *(f"{name} {record[name]}" for name in ("torch", "jax") if name in record),
    ]
    return "\n\n".join(
        [
            "## Measured on a GPU",
            f"{', '.join(facts)}. Before timing, {record['cases']:,} results were compared with the CPU's, "
            f"bit for bit: {record['failures']} differed.",
            goals(times),
            "Median microseconds; normal float32 data, in no cache, except that `cub::DeviceRadixSort` "
            "always sorts the same; in brackets, multiples of `mstopk` in the same column. `torch` and "
            "`jax` were timed by the host, in a process of their own, the others in turn, by events.",
            contenders(compared),
            "Other distributions, microseconds. Where very many elements tie (clipped, zeros), a warp looks "
            "again for those that win, through its own part.",
            other_inputs(times),
        ]
    )


def published() -> str:
    """The tables of the run that is committed."""
    return render(json.loads(results_file("mstopk").with_name("h200.json").read_text()))
