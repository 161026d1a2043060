"""From measurements to Markdown. Pure."""

import statistics

from benchmarks import continuing
from benchmarks.overlap.names import ALONE, GATHER_LAST, TUNED
from benchmarks.report import environment_line, number, said, spread, table
from tf_sparse_strategy.cluster.rate import PAYLOAD

GOAL, BEHIND, TUNING = 0.93, 0.02, 0.98
TOLERANCE = 1e-5


def largest_speedup(forward: float, nbytes: int, workers: int, alpha: float, beta: float) -> float:
    """S_max, where all is hidden that can be. Half an all-reduce takes h = (P-1) (alpha + n beta / P).

    Args:
      forward: seconds; backward takes twice as long.
      nbytes: of the gradients.
      workers: P.
      alpha, beta: seconds per message, and per byte of a link.

    Source: Zhang et al., "DeAR", Eq. 6, with the exact ring factor in place of m/B.
    """
    half = half_seconds(nbytes, workers, alpha, beta)
    return workers * 3 * forward / (max(forward, half) + max(2 * forward, half))


def half_seconds(nbytes: int, workers: int, alpha: float, beta: float) -> float:
    """Of a reduce-scatter or an all-gather, in a ring."""
    return (workers - 1) * (alpha + nbytes * beta / workers)


def render(results: dict) -> str:
    """The answer, one table per cluster and model; what is missing of what was planned."""
    parts = [environment_line(results), *continuing.left_out(results)]
    for name, job in results["jobs"].items():
        parts += [f"### {name}", _facts(job), "\n".join(_verdict(job)), _table(job)]
    return "\n\n".join(parts)


def _network(job):
    """(seconds per message as measured, per byte as the links are set): what no method can beat."""
    return job["links"]["cross_alpha"], 8 / (PAYLOAD * job["rate"])


def _limit(job):
    return largest_speedup(job["forward"], job["bytes"], job["workers"], *_network(job))


def _half(job):
    return half_seconds(job["bytes"], job["workers"], *_network(job))


def _facts(job):
    return (
        f"{number(job['bytes'] / 1e6)} MB of gradients; forward {number(job['forward'] * 1e3)} ms, backward "
        f"twice that, half an all-reduce at least {number(_half(job) * 1e3)} ms (links were measured at "
        f"{8e-6 / job['links']['cross_beta']:.0f} Mbit/s); S_max {number(_limit(job))}."
    )


def _speedup(job, method):
    return job["workers"] * 3 * job["forward"] / statistics.median(job["seconds"][method])


def _verdict(job):
    limit = _limit(job)
    others = [m for m in job["seconds"] if not m.startswith("DeAR") and m != ALONE]
    best = max(others, key=lambda m: _speedup(job, m))
    part = _speedup(job, TUNED) / limit
    gain = _speedup(job, TUNED) / _speedup(job, best) - 1
    binds = _half(job) > job["forward"]  # an all-reduce takes longer than backpropagation
    least, goal = (0, "ahead") if binds else (-BEHIND, f"at most {BEHIND:.0%} behind")
    lines = [
        f"- {TUNED}: {part:.0%} of S_max (goal {GOAL:.0%}: {said(part >= GOAL)}); {gain:+.1%} against the "
        f"best other, {best} (goal here, where an all-reduce takes {'more' if binds else 'less'} time than "
        f"backpropagation: {goal}: {said(gain >= least)})."
    ]
    if job["trials"]:
        start = next(iter(job["trials"].values()))
        chosen = min(job["trials"], key=job["trials"].get)
        tuned = _speedup(job, TUNED) / max(_speedup(job, m) for m in job["seconds"] if m.startswith("DeAR"))
        lines.append(
            f"- {len(job['trials'])} sizes tried; the fastest, {number(int(chosen) / 1e6)} MB, took "
            f"{job['trials'][chosen] / start - 1:+.1%} against the first, 25 MiB; in the rounds {tuned:.0%} "
            f"of the fastest DeAR's speed (goal {TUNING:.0%}: {said(tuned >= TUNING)})."
        )
    wrong = [m for m in job["weights"] if _is_same(job, m) == (m == ALONE)]
    right = "all hold the same weights, but for the control without communication"
    return [*lines, f"- After the checked steps {'WRONG WEIGHTS: ' + ', '.join(wrong) if wrong else right}."]


def _is_same(job, method):
    pairs = zip(job["weights"][method], job["weights"][GATHER_LAST], strict=True)
    return all(abs(a - b) <= TOLERANCE for a, b in pairs)


def _table(job):
    alone = statistics.median(job["seconds"][ALONE])
    rows = [
        [
            method,
            spread(seconds, 1e3),
            number(_speedup(job, method)),
            f"{_speedup(job, method) / _limit(job):.0%}",
            number((statistics.median(seconds) - alone) * 1e3),
        ]
        for method, seconds in sorted(job["seconds"].items(), key=lambda x: statistics.median(x[1]))
        if method != ALONE
    ]
    return table(["method", "ms per step", "speed-up S", "of S_max", "stall, ms"], rows)
