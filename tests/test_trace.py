"""Chrome traces: from readings of the call sites to what a trace viewer accepts."""

import json

import numpy as np

from tf_sparse_strategy import trace
from tf_sparse_strategy.trace import STEPS, Span


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
    trace.write(path, trace.chrome_trace([[bar, step], [step]], nodes=[0, 3]))
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
    [process, *_] = trace.chrome_trace([[]], nodes=[0])["traceEvents"]
    assert process["args"]["name"] == "rank 0 (node 0)"
