"""When each worker communicated and computed, as a Chrome trace: a process row per rank, a line per place.

Written for https://ui.perfetto.dev and chrome://tracing, in the Trace Event Format (complete
events, "ph": "X", times in microseconds). A bar begins when its operation has its input and ends
when it has its result: waiting for slower workers is part of it, so a short bar below long ones
marks the straggler. Clocks of different nodes are aligned by clocks.py.

Horovod's own timeline is no help here: it sees rank 0 only, has to be asked for before `hvd.init`,
and spins on one core while it is on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

STEPS = "steps"  # the line that shows the training steps
COMPUTE = "compute"  # the line that shows when the processor worked
_CATEGORIES = {STEPS: "step", COMPUTE: "compute"}


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

    @property
    def is_collective(self) -> bool:
        return self.line not in (STEPS, COMPUTE)


def in_order(spans: Sequence[Span]) -> list[Span]:
    """Steps, then computation, then collectives, each as they begin."""
    return sorted(spans, key=lambda s: (s.line != STEPS, s.line != COMPUTE, s.begin))


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


def chrome_trace(ranks: Mapping[int, Sequence[Span]], nodes: Sequence[int], run: str = "") -> dict:
    """Returns the trace of these ranks as one JSON-serialisable object.

    Args:
      ranks: each one's bars.
      nodes: the node of each rank of the job.
      run: what tells its traces from those of others.
    """
    begin = min((span.begin for spans in ranks.values() for span in spans), default=0)
    events = []
    for rank, spans in ranks.items():
        events.append(_label("process_name", rank, 0, name=f"rank {rank} (node {nodes[rank]})"))
        events.append(_label("process_sort_index", rank, 0, sort_index=rank))
        lines = {STEPS: 0}
        for span in in_order(spans):
            lines.setdefault(span.line, len(lines))
        for line, thread in lines.items():
            name = ".".join(line.split(".")[:2])
            events.append(_label("thread_name", rank, thread, name=name))
            events.append(_label("thread_sort_index", rank, thread, sort_index=thread))
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": _CATEGORIES.get(span.line, "collective"),
                "pid": rank,
                "tid": lines[span.line],
                "ts": span.begin - begin,
                "dur": span.end - span.begin,
                "args": dict(span.details),
            }
            for span in spans
        ]
    facts = {"begin": begin, "nodes": list(nodes), "run": run}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def spans_of(content: Mapping) -> tuple[dict[int, list[Span]], list[int]]:
    """(each rank's bars, the node of each rank of the job): the inverse of `chrome_trace`.

    Raises:
      ValueError: the trace was not written by `CommunicationMonitor`.
    """
    try:
        begin, nodes = int(content["otherData"]["begin"]), list(content["otherData"]["nodes"])
        categories = {category: line for line, category in _CATEGORIES.items()}
        ranks: dict[int, list[Span]] = {}
        for event in content["traceEvents"]:
            spans = ranks.setdefault(int(event["pid"]), [])
            if event["ph"] == "X":
                details = event["args"]
                line = categories.get(event["cat"]) or details["place"]
                start = begin + event["ts"]
                spans.append(Span(line, event["name"], start, start + event["dur"], details))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no trace of CommunicationMonitor's: it lacks {error}") from None
    return ranks, nodes


def _label(kind: str, rank: int, thread: int, **args) -> dict:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": args}


def write(path: str | os.PathLike, content: dict) -> None:
    """Writes a trace as JSON; makes its directory."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, separators=(",", ":")))
    partial.replace(path)
