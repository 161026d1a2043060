"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.report import environment_line, number, size, spread, table


def _recovered(rate: float, job: dict) -> list[str]:
    model = job["model"]
    measured = 8e-6 / model["cross_beta"]
    return [
        f"{rate:g}",
        f"{measured:.0f}",
        f"{measured / rate:.2f}",
        *(f"{model[name] * 1e6:.0f}" for name in ("cross_alpha", "local_alpha", "phase")),
        f"{8e-6 / model['local_beta']:.0f}" if model["local_beta"] else "",
        f"{job['seconds']:.1f}",
    ]


def _ratios(jobs: dict[str, dict], sizes: list[int]) -> str:
    operations = list(dict.fromkeys(r["operation"] for j in jobs.values() for r in j["records"]))
    found = {
        (rate, r["operation"], r["bytes"]): r["predicted"] / statistics.median(r["seconds"])
        for rate, job in jobs.items()
        for r in job["records"]
    }
    header = [f"{float(rate):g} Mbit/s, {size(n)}" for rate in jobs for n in sizes]
    rows = [
        [name, *(f"{found[rate, name, n]:.2f}" for rate in jobs for n in sizes)]
        for name in operations
    ]
    return table(["predicted / measured", *header], rows)


def _within(jobs: dict[str, dict], n: int, share: float) -> str:
    ratios = [
        r["predicted"] / statistics.median(r["seconds"])
        for job in jobs.values()
        for r in job["records"]
        if r["bytes"] == n
    ]
    good = sum(abs(ratio - 1) <= share for ratio in ratios)
    return (
        f"{good} of {len(ratios)} predictions for {size(n)} are within {share:.0%} of what was "
        f"measured; the median ratio is {statistics.median(ratios):.2f}, the worst "
        f"{min(ratios):.2f} and {max(ratios):.2f}."
    )


def _times(rate: str, job: dict) -> str:
    rows = [
        [r["operation"], size(r["bytes"]), number(r["predicted"] * 1e3), spread(r["seconds"], 1e3)]
        for r in job["records"]
    ]
    header = ["operation", "bytes per worker", "predicted, ms", "measured, ms"]
    return f"#### {float(rate):g} Mbit/s\n\n{table(header, rows)}"


def render(results: dict) -> str:
    """The answer: what was recovered of each link, and how good the predictions are."""
    jobs = results["jobs"]
    sizes = list(dict.fromkeys(r["bytes"] for job in jobs.values() for r in job["records"]))
    header = [
        "link, Mbit/s",
        "measured",
        "ratio",
        "cross alpha, µs",
        "local alpha, µs",
        "phase, µs",
        "inside a node, Mbit/s",
        "measuring took, s",
    ]
    parts = [
        environment_line(results),
        f"Cluster: {results['nodes']} nodes of {results['local']} workers on this one machine.",
        table(header, [_recovered(float(rate), job) for rate, job in jobs.items()]),
        *(_within(jobs, n, 0.2) for n in sizes),
        _ratios(jobs, sizes),
        "### Times",
        "Median (quartiles) over rounds of the slowest worker.",
        *(_times(rate, job) for rate, job in jobs.items()),
    ]
    return "\n\n".join(parts)
