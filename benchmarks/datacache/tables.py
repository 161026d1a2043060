"""Measurements to Markdown; pure."""

import statistics

from benchmarks import report
from benchmarks.datacache import ways

INTO_ONE = "into one batch"  # how a copy is called that a cache may hold
CACHED, TENSOR = "DataCache", "a tensor"  # what later runs read


def _epochs(results: dict, edge: int, way: str, epoch: int) -> list[float]:
    job = next(job for job in results["epochs"] if (job["edge"], job["way"]) == (edge, way))
    return [run["first"]["seconds"][epoch] for run in job["runs"]]


def _again(job: dict) -> list[float]:
    return [run["again"]["seconds"][0] for run in job["runs"] if run["again"]]


def _of(jobs: list[dict], edge: int) -> dict:
    return next(job for job in jobs if job["edge"] == edge)


def _copies(results: dict, edge: int) -> float:
    """Memory that the processes hold together, in decoded data sets."""
    job = _of(results["sharing"], edge)
    return sum(one["shared"] for one in job["memory"][ways.IN_MEMORY]) / (job["images"] * edge * edge * 3)


def _gathered(results: dict, edge: int, into_one: bool = False) -> float:
    """Share of the fastest copy's bandwidth; with `into_one`, also of copies that a cache may hold."""
    seconds = _of(results["gather"], edge)["seconds"]
    copies = [name for name in seconds if name.startswith("copy") and (into_one or INTO_ONE not in name)]
    return min(statistics.median(seconds[name]) for name in copies) / statistics.median(seconds["gather"])


def _longer(job: dict, making: bool) -> float:
    """By how much a later run's first epoch, or it and making the pipeline, is longer than the others."""
    begins = ((run["dataset"] if making else 0) + run["epochs"][0] for run in job["runs"])
    others = (statistics.median(run["epochs"][1:]) for run in job["runs"])
    return statistics.median([one / other - 1 for one, other in zip(begins, others, strict=True)])


def _goals(results: dict, edge: int) -> list[tuple[str, str, bool]]:
    """What was to be reached, what was found, and whether that is it."""
    plain, own = (_epochs(results, edge, way, 1) for way in (ways.PLAIN, ways.WITH_COPIES))
    faster, copies = statistics.median(plain) / statistics.median(own), _copies(results, edge)
    many, few = (job for job in results["later"] if (job["edge"], job["way"]) == (edge, CACHED))
    gigabytes = f"{many['images'] * edge**2 * 3 / (1 << 30):.1f} GiB"

    def gathering(into_one: bool, of: str) -> tuple[str, str, bool]:
        share = _gathered(results, edge, into_one)
        goal = f"gathering at 80% of memcpy's bandwidth at least, {of}"
        return goal, f"{100 * share:.0f}%", share >= 0.8

    def later(job: dict, making: bool, of: str) -> tuple[str, str, bool]:
        longer = _longer(job, making)
        pipeline = "the making of the pipeline" if making else "a pipeline that is made"
        goal = f"second run's first epoch at most 5% longer than its later ones, {of}, with {pipeline}"
        return goal, f"{100 * longer:+.0f}%", longer <= 0.05

    def filling(way: str, of: str, what: str) -> tuple[str, str, bool]:
        first, other = (statistics.median(_epochs(results, edge, each, 0)) for each in (way, of))
        longer = first / other - 1
        return what, f"{100 * longer:+.0f}%", longer <= 0.05

    return [
        ("second epoch at least 10x faster than uncached", f"{faster:.1f}x", faster >= 10),
        gathering(False, "into several batches in turn"),
        gathering(True, "of the fastest in the table, into one batch too"),
        ("one copy for 4 processes", f"{copies:.2f} copies", copies < 1.1),
        later(many, False, gigabytes),
        later(many, True, gigabytes),
        later(few, False, "as few images as the JPEGs"),
        later(few, True, "as few images as the JPEGs"),
        filling(ways.IN_MEMORY, ways.PLAIN, f"filling memory within 5% of the first epoch of {ways.PLAIN}"),
        filling(ways.WITH_COPIES, ways.PLAIN, "filling memory and copies, too"),
        filling(ways.IN_MEMORY, ways.UNKEPT, "filling memory within 5% of our reading that keeps nothing"),
        filling(ways.WITH_COPIES, ways.UNKEPT, "filling memory and copies, too"),
    ]


def _ways(results: dict, edge: int) -> str:
    floor = statistics.median(_epochs(results, edge, ways.PLAIN, 1))

    def cell(seconds: list[float]) -> str:
        return f"{report.spread(seconds, 1)}, {floor / statistics.median(seconds):.1f}x" if seconds else ""

    rows = []
    for job in results["epochs"]:
        if job["edge"] == edge:
            both = [_epochs(results, edge, job["way"], epoch) for epoch in (0, 1)]
            rows.append([job["way"], *map(cell, (*both, _again(job)))])
    return report.table(["", "epoch 1", "epoch 2", "first epoch of the next run"], rows)


def _memory(results: dict) -> str:
    rows = []
    for job in results["sharing"]:
        decoded = job["images"] * job["edge"] ** 2 * 3
        plain = sum(one["private"] for one in job["memory"][ways.PLAIN])
        for way, processes in job["memory"].items():
            if way != ways.PLAIN:
                private, shared = (sum(one[kind] for one in processes) for kind in ("private", "shared"))
                numbers = (decoded, private - plain, shared)
                rows.append([f"{job['edge']} px, {way}", *(f"{number / 1e6:.0f}" for number in numbers)])
    header = ["MB", "decoded images", f"private memory more than of {ways.PLAIN}", "shared memory"]
    return report.table(header, rows)


def _later(results: dict) -> str:
    rows = []
    for job in results["later"]:
        parts = zip(*([run["dataset"], *run["epochs"]] for run in job["runs"]), strict=True)
        name = f"{job['images']} of {job['edge']} px"
        rows.append([name, job["way"], *(report.spread(seconds, 1) for seconds in parts)])
    epochs = (f"epoch {number + 1}" for number in range(len(rows[0]) - 3))
    return report.table(["decoded images", "of", "making the pipeline", *epochs], rows)


def _gather(results: dict) -> str:
    names = list(results["gather"][0]["seconds"])
    rows = [
        [
            f"{job['edge']} px",
            *(report.spread([job["bytes"] / x for x in job["seconds"][name]], 1e-9) for name in names),
            f"{100 * _gathered(results, job['edge']):.0f}%",
        ]
        for job in results["gather"]
    ]
    return report.table(["", *names, "of the faster copy"], rows)


def _stores(results: dict) -> list[str]:
    """Our store beside LMDB."""
    kinds = results["flips"]
    outcomes = next(iter(kinds.values()))
    flips = [[kind, *map(str, counts.values())] for kind, counts in kinds.items()]
    rates = []
    for job in results["speeds"]:
        for kind, seconds in job["seconds"].items():
            spreads = (
                report.spread([job["bytes"] / x for x in seconds[what]], 1e-9) if what in seconds else ""
                for what in ("fill", "gather")
            )
            rates.append([f"{job['edge']} px", kind, *spreads])
    return [
        "### Our store beside LMDB\n\nOne bit flips, in what leads to the samples: pages of LMDB's tree, our "
        f"header and table. What happens to a process that then reads all of them, {sum(outcomes.values())} "
        "times each. (In the samples LMDB has no checksum to notice it by.)",
        report.table(["store", *outcomes], flips),
        "GB/s of one thread, from Python: filling by 64 samples, which we checksum, and gathering 256 in "
        "random order into a new batch; *copy* is `numpy.take`.",
        report.table(["images", "store", "fill", "gather"], rates),
    ]


def render(results: dict) -> str:
    """The generated part of docs/datacache.md."""
    storage = results["storage"]
    edges = list(dict.fromkeys(job["edge"] for job in results["epochs"]))
    goals = [_goals(results, edge) for edge in edges]
    rows = [
        [named[0][0], *(f"{found}, {report.said(reached)}" for _, found, reached in named)]
        for named in zip(*goals, strict=True)
    ]
    parts = [report.environment_line(results), "### Goals"]
    parts.append(report.table(["", *(f"{edge} px" for edge in edges)], rows))
    for edge in edges:
        images = _of(results["epochs"], edge)["images"]
        parts.append(
            f"### {images} JPEGs of {edge} px on central storage\n\n{storage['latency_ms']} ms per request, "
            f"{storage['mbit']} Mbit/s in all. Seconds to read and decode all: median (quartiles), and how "
            f"many times faster than the second epoch of {ways.PLAIN}."
        )
        parts.append(_ways(results, edge))
    if results["peers"]:
        parts.append(results["peers"])
    parts.append(
        "### Later runs\n\nSeconds of runs that find all samples in memory: median (quartiles). Making the "
        "pipeline includes a check of the first epoch's samples, and maps their memory into the process. The "
        "first run has filled the memory in the order of its first epoch, as a later run with the same seed "
        "reads it. *A tensor* is tf.data alone, which gathers batches of as many images from a tensor: what "
        "the start of any pipeline takes, for its threads and the memory of its first batches."
    )
    parts.append(_later(results))
    parts.append(
        "### Batches from memory\n\nGB/s of one process: a dataset's batches of 256 samples in random order, "
        "and memcpy() of as many samples from an array into batches whose memory is there already: several "
        "in turn, as a pipeline makes them, or always the same one, which the processor's cache may hold."
    )
    parts.append(_gather(results))
    processes = results["sharing"][0]["processes"]
    parts.append(f"### Memory of {processes} processes\n\nTogether, after two epochs each.")
    parts.append(_memory(results))
    if "stores" in results:
        parts += _stores(results["stores"])
    return "\n\n".join(parts) + "\n"
