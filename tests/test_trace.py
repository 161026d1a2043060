"""Chrome traces: from readings of the call sites to what a trace viewer accepts, and back; `tss trace`."""

import json

import numpy as np
import pytest

from tf_sparse_strategy import cli, trace
from tf_sparse_strategy.trace import COMPUTE, STEPS, Span


def reading(*sites):
    return [(name, np.array(numbers, np.int64)) for name, *numbers in sites]


def test_difference_of_two_readings_is_what_happened_between():
    before = reading(("g.all_reduce_sum.f.0", 2, 80, 8, 900, 990))
    idle = ("x.broadcast.f.0", 0, 0, 0, 0, 0)
    after = reading(("g.all_reduce_sum.f.0", 3, 120, 12, 2100, 2290), idle)
    [span] = trace.site_spans(before, after, clock_start=5.0, step=7)
    assert span == Span(
        "g.all_reduce_sum.f.0",
        "g.all_reduce_sum",
        5_001_200,
        5_001_300,
        {"step": 7, "local_bytes": 40, "cross_bytes": 4, "place": "g.all_reduce_sum.f.0"},
    )


def test_several_calls_become_one_bar_that_says_so():
    after = reading(("g.all_gather.f.0", 2, 80, 0, 400, 600))
    [span] = trace.site_spans([], after, clock_start=0.0, step=0)
    assert (span.name, span.begin, span.end) == ("g.all_gather x2", 200, 300)
    assert span.details["note"] == "mean of 2 calls"


def test_each_rank_is_a_process_and_each_place_a_line(tmp_path):
    bar = Span("g.all_reduce_sum.f.1", "g.all_reduce_sum", 1_500, 1_900, {"step": 0})
    step = Span(STEPS, "step 0", 1_000, 2_000, {})
    path = tmp_path / "new" / "trace.json"
    trace.write(path, trace.chrome_trace({0: [bar, step], 1: [step]}, nodes=[0, 3]))
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {0: "rank 0 (node 0)", 1: "rank 1 (node 3)"}
    bars = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert sorted(bars) == [
        (0, 0, "step 0", 0, 1000),
        (0, 1, "g.all_reduce_sum", 500, 400),
        (1, 0, "step 0", 0, 1000),
    ]
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lines == {(0, 0): STEPS, (0, 1): "g.all_reduce_sum", (1, 0): STEPS}
    for event in events:  # what Perfetto and chrome://tracing require of an event
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] == "M" or event["dur"] >= 0 <= event["ts"]


def test_nothing_recorded_is_still_a_trace():
    [process, *_] = trace.chrome_trace({0: []}, nodes=[0])["traceEvents"]
    assert process["args"]["name"] == "rank 0 (node 0)"


PLACE = "g.all_reduce_sum.f.0"


def worker(rank, ahead):
    """A step of 10 ms: 6 ms of computation, 5 ms of communication, 2 ms of them at once."""
    start = 1_000_000 + ahead
    return [
        Span(STEPS, "step 4", start, start + 10_000, {}),
        Span(COMPUTE, COMPUTE, start, start + 6_000, {}),
        Span(PLACE, "g.all_reduce_sum", start + 4_000 - rank, start + 9_000, {"step": 4, "place": PLACE}),
    ]


def test_what_was_written_can_be_read():
    ranks, nodes = {2: worker(2, 0), 5: worker(5, 70)}, [0, 0, 0, 1, 1, 1]
    content = json.loads(json.dumps(trace.chrome_trace(ranks, nodes)))
    assert trace.spans_of(content) == (ranks, nodes)


@pytest.mark.parametrize("content", [{}, [], {"traceEvents": []}, {"traceEvents": [{}], "otherData": {}}])
def test_strange_traces(content):
    with pytest.raises(ValueError, match="no trace of CommunicationMonitor"):
        trace.spans_of(content)


def test_traces_of_several_workers_become_one(tmp_path, capsys):
    """Of two nodes, one's clock 3 s ahead: joined, their operations end together."""
    paths = [str(tmp_path / f"trace-{rank}.json") for rank in range(2)]
    for rank, path in enumerate(paths):
        trace.write(path, trace.chrome_trace({rank: worker(rank, 3_000_000 * rank)}, nodes=[0, 1]))
    joined = tmp_path / "joined.json"
    assert cli.main(["trace", *paths[::-1], "--output", str(joined)]) == 0
    assert trace.spans_of(json.loads(joined.read_text()))[0] == {r: worker(r, 0) for r in range(2)}
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[1:] == [
        ["0", "0", "+0", "1", "10.00", "4.00", "40%"],
        ["1", "1", "+3000000", "1", "10.00", "4.00", "40%"],
    ]


def test_traces_that_cannot_be_joined(tmp_path, capsys):
    mine = tmp_path / "0.json"
    trace.write(mine, trace.chrome_trace({0: worker(0, 0)}, nodes=[0, 1]))
    other = tmp_path / "other.json"
    trace.write(other, trace.chrome_trace({1: worker(1, 0)}, nodes=[0, 1, 2]))
    later = tmp_path / "later.json"
    trace.write(later, trace.chrome_trace({1: worker(1, 0)}, nodes=[0, 1], run="later"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for second, reason in (
        (mine, "rank 0 is in another file"),
        (other, "another run"),
        (later, "another run"),
        (broken, "broken.json"),
        (tmp_path / "missing", "missing"),
    ):
        assert cli.main(["trace", str(mine), str(second)]) == 1
        assert reason in capsys.readouterr().err


def test_a_trace_without_computation(tmp_path, capsys):
    path = tmp_path / "old.json"
    trace.write(path, trace.chrome_trace({0: worker(0, 0)[::2]}, nodes=[0]))
    assert cli.main(["trace", str(path)]) == 0
    assert "does not say when it computed" in capsys.readouterr().out
