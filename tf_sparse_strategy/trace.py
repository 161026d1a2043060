"""When each worker communicated, as a Chrome trace: one process row per rank, one line per place.

Written for https://ui.perfetto.dev and chrome://tracing, in the Trace Event Format (complete
events, "ph": "X", times in microseconds). A bar begins when its operation has its input and ends
when it has its result: waiting for slower workers is part of it, so a short bar below long ones
marks the straggler. Clocks of different nodes are taken as they are.

Horovod's own timeline is no help here: it sees rank 0 only, has to be asked for before `hvd.init`,
and spins on one core while it is on.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

from tf_sparse_strategy import agreement
from tf_sparse_strategy.collectives import Collectives

STEPS = "steps"  # the line that shows the training steps


@dataclasses.dataclass(frozen=True)
class Span:
    """One bar.

    Args:
      line: the line it stands on.
      name: what is written on it.
      begin, end: Unix time, microseconds.
      details: shown when the bar is clicked.
    """

    line: str
    name: str
    begin: int
    end: int
    details: Mapping[str, object]


def site_spans(before, after, clock_start: float, step: int) -> list[Span]:
    """The bars of what happened at each place between two readings of `CallSites.sites()`.

    A place passed k > 1 times in between (a loop, steps_per_execution) gets one bar, from the mean
    start to the mean end, that says so.
    """
    old = dict(before)
    spans = []
    for name, counted in after:
        change = counted - old.get(name, 0)
        calls, local, cross = change[:3].tolist()
        if calls == 0:
            continue
        begin, end = (change[3:5] // calls + int(clock_start * 1e6)).tolist()
        details = {"step": step, "local_bytes": local, "cross_bytes": cross, "place": name}
        if calls > 1:
            details["note"] = f"mean of {calls} calls"
        purpose, kind = name.split(".")[:2]
        label = f"{purpose}.{kind}" + (f" x{calls}" if calls > 1 else "")
        spans.append(Span(name, label, begin, max(end, begin), details))
    return spans


def chrome_trace(ranks: Sequence[Sequence[Span]], nodes: Sequence[int]) -> dict:
    """Returns the trace of all ranks as one JSON-serialisable object.

    Args:
      ranks: each rank's bars.
      nodes: each rank's node.
    """
    begin = min((span.begin for spans in ranks for span in spans), default=0)
    events = []
    for rank, spans in enumerate(ranks):
        events.append(_label("process_name", rank, 0, name=f"rank {rank} (node {nodes[rank]})"))
        events.append(_label("process_sort_index", rank, 0, sort_index=rank))
        lines = {STEPS: 0}
        for span in sorted(spans, key=lambda s: (s.line != STEPS, s.begin)):
            lines.setdefault(span.line, len(lines))
        for line, thread in lines.items():
            name = ".".join(line.split(".")[:2])
            events.append(_label("thread_name", rank, thread, name=name))
            events.append(_label("thread_sort_index", rank, thread, sort_index=thread))
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": "step" if span.line == STEPS else "collective",
                "pid": rank,
                "tid": lines[span.line],
                "ts": span.begin - begin,
                "dur": span.end - span.begin,
                "args": dict(span.details),
            }
            for span in spans
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _label(kind: str, rank: int, thread: int, **args) -> dict:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": args}


def write(path: str | os.PathLike, content: dict) -> None:
    """Writes a trace as JSON; makes its directory."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")))


def gather(spans: Sequence[Span], collectives: Collectives) -> list[list[Span]]:
    """Every rank's bars. Collective."""
    rows = agreement.gather([dataclasses.astuple(span) for span in spans], collectives)
    return [[Span(*fields) for fields in row] for row in rows]
