"""`tss trace`: joins traces of several workers, and says how well communication hides."""

import argparse
import json
import pathlib
import sys

from tf_sparse_strategy import clocks, stall, timeline, trace

_DESCRIPTION = """\
Reads the trace that CommunicationMonitor(trace="trace.json") writes, or joins those that
trace="trace-{rank}.json" writes on each worker into one, for https://ui.perfetto.dev: a row of computation
and rows of communication for each rank. Clocks of different nodes are aligned: an operation in which all
take part ends on all at about the same time. Prints by rank how long it did not compute (stall), and what
part of its communication was hidden behind computation."""

_EPILOG = """\
examples:
  tss trace trace-*.json --output trace.json
  tss trace trace.json --picture timeline.svg

The exit code is 1 when a file cannot be read, written or drawn, 2 for wrong arguments, 0 otherwise."""


def main(argv: list[str]) -> int:
    """Returns 0, 1 when a file cannot be read or written, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="tss trace",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE", help="of one run")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write the joined trace")
    parser.add_argument(
        "--picture", type=pathlib.Path, metavar="FILE", help="draw it: .svg, .png or .pdf; needs matplotlib"
    )
    args = parser.parse_args(argv)
    try:
        ranks, nodes = _read(args.traces)
        apart = clocks.offsets(ranks, nodes)
        ranks = clocks.aligned(ranks, nodes, apart)
        if args.output:
            trace.write(args.output, trace.chrome_trace(ranks, nodes))
        if args.picture:
            panels = {f"rank {rank} (node {nodes[rank]})": spans for rank, spans in ranks.items()}
            timeline.draw(args.picture, panels)
    except ModuleNotFoundError as error:
        print(f"tss trace: {error}; --picture needs it: pip install {error.name}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"tss trace: {error}", file=sys.stderr)
        return 1
    print("\n".join(_table(ranks, nodes, apart)))
    return 0


def _read(paths):
    """(each rank's bars, in order, the node of each rank) of all files together."""
    ranks, job = {}, None
    for path in paths:
        try:
            content = json.loads(path.read_text())
            found, nodes = trace.spans_of(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        theirs = nodes, content["otherData"].get("run")
        twice = sorted(set(found) & set(ranks))
        if twice or job not in (None, theirs):
            what = f"rank {twice[0]} is in another file, too" if twice else "it is of another run"
            raise ValueError(f"{path}: {what}. Name the files of one run, each once.")
        ranks.update(found)
        job = theirs
    return dict(sorted(ranks.items())), nodes


def _table(ranks, nodes, apart):
    lines = ["rank node  clock µs steps  step ms stall ms hidden"]
    for rank, spans in ranks.items():
        found, line = stall.times(spans), f"{rank:>4} {nodes[rank]:>4} {apart[nodes[rank]]:>+9}"
        if found is None or not found.steps:
            lines.append(f"{line} {'(does not say when it computed)':>30}")
            continue
        step = found.total / found.steps * 1e3
        lines.append(f"{line} {found.steps:>5} {step:>8.2f} {found.stall * 1e3:>8.2f} {found.overlap:>6.0%}")
    return lines
