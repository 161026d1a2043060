"""From measurements to Markdown."""

import collections
import dataclasses
import json
import math
import statistics

from benchmarks.end_to_end import projection
from benchmarks.end_to_end.names import ALONE, AUTO, DENSE, DENSE_WAYS, HITOPK, SPARSE_WAYS
from benchmarks.report import (
    environment_line,
    mean_and_deviation,
    number,
    results_file,
    said,
    spread,
    table,
)
from benchmarks.scheduling_2d import tables as scheduling_2d

GOAL = 1.25  # HiTopK's speed by the best dense way's where communication dominates
NEAR = 2  # points of accuracy that a sparse way may be behind
SAME = 1e-4  # of a loss, where sums are added up in another order


def median(job: dict, way: str) -> float:
    """Seconds of a step."""
    return statistics.median(job["seconds"][way])


def efficiency(job: dict, way: str) -> float:
    """Scaling efficiency: throughput of all workers by that of as many without communication."""
    return median(job, ALONE) / median(job, way)


def exposed(job: dict, way: str) -> float:
    """Seconds of a step in which a worker waits for communication."""
    return max(0.0, median(job, way) - median(job, ALONE))


def best(job: dict, ways) -> str:
    """The fastest of `ways`."""
    return min((way for way in ways if way in job["seconds"]), key=lambda way: median(job, way))


def verdict(model: str, job: dict) -> str:
    """Whether HiTopK, which learns well enough (docs/convergence.md), is fast enough, and what is faster."""
    dense, sparse = best(job, DENSE_WAYS), best(job, SPARSE_WAYS)
    gain = median(job, dense) / median(job, HITOPK)
    bound = median(job, dense) > 2 * median(job, ALONE)
    goal = f"goal {GOAL:g}: {said(gain >= GOAL)}" if bound else "its computation takes more than half"
    most = f"the fastest sparse way, {sparse}, {median(job, dense) / median(job, sparse):.2f} times"
    auto = median(job, AUTO) / min(median(job, dense), median(job, sparse))
    return (
        f"- {model}: {HITOPK} does {gain:.2f} times the steps of the best dense way, {dense} ({goal})"
        f"{'' if sparse == HITOPK else f'; {most}'}. Auto takes {auto:.2f} times the time of the best."
    )


def speeds(job: dict, workers: int, rows: int) -> str:
    """Throughput, efficiency, bytes and what is exposed, by way."""
    found = []
    for way in (*DENSE_WAYS, *SPARSE_WAYS):
        if way in job["seconds"]:
            sent = job["sent"].get(way)
            found.append(
                [
                    way,
                    spread(job["seconds"][way], 1),
                    number(workers * rows / median(job, way)),
                    f"{efficiency(job, way):.0%}",
                    number(exposed(job, way)),
                    number(sum(sent) * 1e-6) if sent else "",
                ]
            )
    header = ["way", "s per step", "samples/s", "efficiency", "s exposed", "MB sent by worker 0"]
    return table(header, found)


PHASES = ("whole", "computing", "updating", "selecting", "communicating")


def breakdown(job: dict) -> str:
    """Seconds of one step by phase, and in each kind of collective."""
    by_way = {}
    for way, parts in job["parts"].items():
        rest = max(0.0, median(job, ALONE) - job["computation"])
        by_way[way] = collections.Counter(computing=job["computation"], updating=rest)
        if job["computed"].get(way):
            by_way[way]["selecting"] = job["computed"][way]
        for name, seconds in parts.items():  # a phase, or "<purpose>.<kind>"
            by_way[way][name.split(".")[-1]] += seconds
    kinds = sorted(set().union(*by_way.values()) - set(PHASES))
    rows = [
        [way, *(number(of_kind[kind]) if kind in of_kind else "" for kind in (*PHASES, *kinds))]
        for way, of_kind in by_way.items()
    ]
    return table(["a further step, timed, s", "in all", *PHASES[1:], *kinds], rows)


def accuracy_verdict(curves: dict) -> str:
    """How far behind the sparse ways' mean accuracies are, and whether the goal is reached."""
    ends = {way: statistics.fmean(100 * points[-1][2] for points in seeds) for way, seeds in curves.items()}
    behind = {way: ends[DENSE] - ends[way] for way in curves if way in SPARSE_WAYS}
    parts = [
        f"{way} is {abs(points):.1f} points {'ahead of' if points < 0 else 'behind'} {DENSE}"
        for way, points in behind.items()
    ]
    reached = all(points <= NEAR for points in behind.values())
    return (
        f"- Accuracy on digits, of the model below: {', '.join(parts)} (goal {NEAR} at most: "
        f"{said(reached)}). A deeper model loses more, and Auto what its scheme does: "
        "[which reach the goal there](../convergence.md)."
    )


def check_alike(curves: dict) -> None:
    """Raises RuntimeError where ways that sum exactly have other losses after an epoch.

    Later ones are left out: rounding, which differs by the order of sums, grows with the steps.
    """
    for seeds in zip(*(curves[way] for way in DENSE_WAYS if way in curves), strict=True):
        losses = [points[0][1] for points in seeds]
        if any(map(math.isnan, losses)) or max(losses) - min(losses) > SAME * min(losses):
            raise RuntimeError(f"After an epoch exact ways have different losses, {losses}.")


def learned(curves: dict, reached: float) -> str:
    """Seconds until an accuracy is reached, and what is reached in the end; mean and deviation over seeds."""
    rows = []
    for way, seeds in curves.items():
        first = [next((s for s, _, accuracy in points if accuracy >= reached), None) for points in seeds]
        never = f"never: {first.count(None)} of {len(first)}"  # a mean of the others would be too good
        rows.append(
            [
                way,
                never if None in first else mean_and_deviation(first),
                mean_and_deviation([points[-1][0] for points in seeds]),
                mean_and_deviation([100 * points[-1][2] for points in seeds]),
            ]
        )
    return table(["way", f"s to {reached:.0%}", "s in all", "accuracy in the end, %"], rows)


def projected(results: dict) -> str:
    """The projection's tables, with its inputs and its errors."""
    jobs, selection = results["jobs"], projection.middle(results["jobs"], "selection")
    links = projection.links_of(projection.middle(jobs, "links"), results["rate"])
    ratios = projection.errors(jobs)
    inputs = [
        ["latency inside a node, between nodes", f"{number(links.local_alpha)}, {number(links.cross_alpha)}"],
        ["a byte inside a node, between nodes", f"{number(links.local_beta)}, {number(links.cross_beta)}"],
        ["start of a collective, of an all-to-all more", f"{number(links.phase)}, {number(links.exchange)}"],
        [
            "selecting, packing and adding, per element: " + ", ".join(selection),
            ", ".join(number(each) for each in selection.values()),
        ],
    ]
    parts = [
        "**A projection, not a measurement.** Seconds of one sum of a model's gradients by the [cost "
        "model](../cost_model.md), none of them hidden behind computation. Its inputs are medians of what "
        "the jobs above measured, but for bytes between nodes: at 25 Gbit/s, at the share of the nominal "
        "rate that was reached here. What schemes compute per element is that of this cluster's processors: "
        "adding up more nodes' messages, as HiTopK does, takes longer. The ranges are predictions times what "
        "sums of the same way took here by their predictions: errors of the model on this cluster; how it "
        "errs on 1,024 workers nobody has measured.",
        table(["input", "s"], inputs),
        table(
            ["", *ratios],
            [["measured / predicted", *(f"{min(r):.2f}–{max(r):.2f}" for r in ratios.values())]],
        ),
    ]
    fast = dataclasses.replace(links, local_beta=projection.ASSUMED_LOCAL_BETA)
    places = {
        "workers of a node joined by this machine's loopback device, as measured": links,
        f"workers of a node joined at {1e-9 / fast.local_beta:g} GB/s (PCIe 3.0 x16): assumed": fast,
    }
    for place, of_place in places.items():
        found = projection.seconds(of_place, selection, results["density"])
        for cluster, models in found.items():
            rows = [
                [model, *(f"{s[w] * min(r):.2g}–{s[w] * max(r):.2g}" for w, r in ratios.items())]
                for model, s in models.items()
            ]
            parts += [f"#### {cluster}, 25 Gbit/s; {place}", table(["model", *ratios], rows)]
    return "\n\n".join(parts)


def large_tables(scheduled: dict) -> list[str]:
    """What 2D scheduling does, from the results of its benchmark."""
    place = scheduled["environment"]
    return [
        "Sharded tables beside all-reduces and all-gathers, and 2D scheduling, have documents of their own: "
        "[embedding](../embedding.md), [2D scheduling](../scheduling_2d.md), from which this is taken "
        f"({place['date']}, commit {place['commit']}, {place['machine']}).",
        scheduling_2d.throughput(scheduled["jobs"]),
    ]


def render(results: dict, scheduled: dict | None = None) -> str:
    """The report, but for its pictures.

    Args:
      results: the measurements.
      scheduled: those of 2D scheduling's benchmark; its published ones by default.
    """
    scheduled = scheduled or json.loads(results_file("scheduling_2d").read_text())
    jobs, workers = results["jobs"], results["workers"]
    curves = next(iter(results["learning"].values()))
    seeds, epochs = len(curves), len(curves[0])
    parts = [
        environment_line(results),
        f"{results['cluster']}, {results['rate'] / 1e6:g} Mbit/s, density {results['density']:.1%}.",
        "\n".join(verdict(model, job) for model, job in jobs.items()),
        accuracy_verdict(results["learning"]),
        "## Speed",
        "Computation is emulated: layers wait instead of computing, since the workers share this machine's "
        "cores. Sums, selections and updates are real. Efficiency is the speed by that of the same workers "
        "without any sums. In the tables of timed steps, each the median of three, *communicating* is the "
        "time in which any collective is under way; those of several buckets overlap each other and "
        "computation. *Updating* is what a step without any sums takes beyond its computation, *selecting* "
        "what a sum takes beside its messages, by the calibrated cost model. Horovod and "
        "MultiWorkerMirroredStrategy do not say when their collectives run.",
        "![samples per second by model and way](speed.svg)",
    ]
    for model, job in jobs.items():
        size, milliseconds = job["parameters"] / 1e6, job["computation"] * 1e3
        about = f"{number(size)} M parameters, {number(milliseconds)} ms of computation."
        parts += [f"### {model}", about, speeds(job, workers, results["rows"]), breakdown(job)]
    parts += [
        "## Loss against time",
        "Nothing is emulated here: handwritten digits, layers of 1024 and 512 units, real arithmetic. "
        f"{epochs} epochs; mean and standard deviation over {seeds} seeds. What Auto measures before the "
        "first step, for some ten seconds on links this slow, is not counted.",
        "![loss and accuracy by seconds of training](learning.svg)",
        learned(results["learning"], results["accuracy"]),
        "## Models with large tables",
        *large_tables(scheduled),
        "## Larger clusters",
        projected(results),
    ]
    return "\n\n".join(parts)
