"""What every benchmark that renews a document shares: command line, environment, Markdown.

A question `benchmarks/<question>` keeps its measurements in `results/results.json` and has its answer
generated between two marks of `docs/<question>.md`.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable
from importlib import metadata

ROOT = pathlib.Path(__file__).parents[1]
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
QUIET = 1.0  # load average below which nothing else ran

Measure = Callable[..., dict]
Render = Callable[[dict], str]


def results_file(question: str) -> pathlib.Path:
    """Where the published measurements of a question are."""
    return ROOT / "benchmarks" / question / "results" / "results.json"


def main(
    question: str,
    description: str,
    measure: Measure,
    render: Render,
    document: str | None = None,
    finish: Callable[[dict, str], None] | None = None,
    continues: bool = False,
) -> None:
    """Measures, prints, publishes.

    Args:
      question: folder in benchmarks/.
      description: for --help.
      measure: from whether it shall be quick, the measurements as JSON values.
      render: from measurements, the generated part of the document; pure.
      document: its name in docs/; that of the question by default.
      finish: called with the measurements and the new document when they are published.
      continues: whether `measure` also takes the file, or None, in which it may `write` what it has as it
        goes, and find what an interrupted run has left.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few sizes and rounds, to see that it works; prints only"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, help="write the measurements to this file; publish nothing"
    )
    parser.add_argument(
        "--document", action="store_true", help="renew the document from the results; measure nothing"
    )
    args = parser.parse_args()
    published = results_file(question)
    if args.document:
        results = json.loads(published.read_text())
    else:
        before = environment()
        to = args.json or (None if args.quick else published)
        found = measure(args.quick, to) if continues else measure(args.quick)
        results = {"environment": before, **found}  # those of a run that goes on are its first part's
        if args.quick:
            results["environment"]["run"] = "quick"
        results["environment"]["load average at end"] = round(os.getloadavg()[0], 2)
    kept = args.json or (None if args.quick or args.document else published)
    if kept:
        write(kept, results)  # before anything of the document can fail
    text = render(results)
    if args.document or kept == published:
        path = ROOT / "docs" / f"{document or question}.md"
        path.write_text(insert(path.read_text(), text))
        if finish:
            finish(results, path.read_text())
    print(text)


def write(file: pathlib.Path, results: dict) -> None:
    """Puts results in their file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.new")
    beside.write_text(json.dumps(results, indent=1) + "\n")
    beside.replace(file)


def environment() -> dict:
    """What a reader needs to judge the figures."""
    cpu = pathlib.Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": f"{os.cpu_count()} CPU cores, {names[0] if names else platform.machine()}",
        "system": f"{platform.system()} {platform.release()}",
        "load average at start": round(os.getloadavg()[0], 2),
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in ("tensorflow", "keras", "horovod", "numpy")},
    }


def commit() -> str:
    """The source tree's, with "-dirty" where it differs from it; "unknown" outside of Git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def environment_line(results: dict) -> str:
    """One sentence, with a warning where other work disturbed the run."""
    known = results["environment"]
    line = ", ".join(f"{name} {value}" for name, value in known.items()) + "."
    if known["load average at start"] > QUIET:
        line += " **The machine was busy with other work: compare ratios, not times.**"
    return line


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; all columns but the first are aligned right."""
    header = list(header)
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three significant digits; all digits before the point from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: list[float], scale: float) -> str:
    """Median and quartiles, times `scale`."""
    if len(values) == 1:
        return number(values[0] * scale)
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    low, middle, high = (number(value * scale) for value in quartiles)
    return f"{middle} ({low}–{high})"


def mean_and_deviation(values: list[float], scale: float = 1, form: Callable[[float], str] = number) -> str:
    """Mean ± standard deviation, times `scale`; of one value itself."""
    deviation = f" ± {form(scale * statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{form(scale * statistics.fmean(values))}{deviation}"


def paired_ratio(seconds: dict[str, list[float]], one: str, other: str) -> float:
    """A way's time by another's in the same round, the median: what slows a whole round does not count."""
    return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))


def said(reached: bool) -> str:
    """What became of a goal."""
    return "reached" if reached else "missed"


def size(n: int) -> str:
    """Bytes, in the largest unit that is not above them, rounded down."""
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if n >= factor:
            return f"{n // factor} {unit}"
    return f"{n} B"


def insert(document: str, text: str) -> str:
    """Returns the document with the part between its marks replaced.

    Raises:
      ValueError: the marks are missing.
    """
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document needs the lines {BEGIN!r} and {END!r}, in this order.")
    return f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}"
