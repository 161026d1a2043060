"""The goals of benchmarks/mstopk, from made-up measurements."""

from benchmarks.mstopk import gpu_tables, tables
from benchmarks.mstopk.names import ADDITION, BURST, CHECKED, EAGERLY, INTO_GRAD


def record(what, log_n, per, time, **facts):
    n = 1 << log_n
    return {"what": what, "n": n, "k": n // per, "cpu_us": time, "wall_us": time, **facts}


def test_goals_take_the_worst():
    selection = []
    for log_n, per, ours in ((18, 1000, 99), (24, 1000, 10), (24, 100, 20), (26, 1000, 12.5)):
        times = {"one read": 8, "mstopk": ours, EAGERLY: 2 * ours}
        times |= {"tf.math.top_k": 200} if log_n == 24 else {}
        selection += [record(what, log_n, per, time, cold=True) for what, time in times.items()]
    threads = [
        record(f"{what}, {count} threads", log_n, 100, time)
        for what, log_n, one, two in (
            ("mstopk", 22, 1, 9),
            ("mstopk", 24, 16, 8),
            ("mstopk", 26, 15, 10),
            ("one read", 22, 1, 9),
            ("one read", 24, 18, 10),
        )
        for count, time in ((1, one), (2, two))
    ]
    fused = [
        record(what, log_n, per, time)
        for log_n, per, into in ((20, 100, 99), (24, 1000, 11), (24, 100, 14))
        for what, time in ((ADDITION, 10), (CHECKED, 17), (INTO_GRAD, into), ("apart", into + 1))
    ]
    short = [record(EAGERLY, 18, 1000, 61 * BURST)]
    said = tables.goals({"selection": selection, "threads": threads, "fused": fused, "short": short})
    assert "two threads: times as fast as one (one read: 1.80)" in said
    worst = [line.split(" | ")[2:] for line in said.splitlines()[2:]]
    assert worst == [
        ["0.64", "missed |"],
        ["0.32", "missed |"],
        ["0.4", "missed |"],
        ["0.2", "missed |"],
        ["20", "reached |"],
        ["10", "missed |"],
        ["1.5", "missed |"],
        ["1.1", "reached |"],
        ["1.4", "reached |"],
        ["1.2", "reached |"],
        ["1.5", "missed |"],
        ["61", "missed |"],
    ]


def test_goals_of_a_gpu():
    times = {
        "mstopk": {
            (20, 1000): 12,
            (22, 100): 1,
            (24, 1000): 10,
            (24, 100): 20,
            (27, 1000): 161,
            (27, 100): 200,
        },
        "mstopk_error_feedback": {(27, 1000): 449},
        "cub::DeviceTopK, |x| given": {
            (24, 1000): 40,
            (24, 100): 200,
            (27, 1000): 400,
            (27, 100): 1600,
        },
        "cub::DeviceTopK of x": {(24, 1000): 30, (24, 100): 900, (27, 1000): 500, (27, 100): 1400},
    }
    sized = {
        what: {(1 << log_n, (1 << log_n) // per): time for (log_n, per), time in found.items()}
        for what, found in times.items()
    }
    worst = [line.split(" | ")[2:] for line in gpu_tables.goals(sized).splitlines()[2:]]
    assert worst == [
        ["161", "missed |"],
        ["12", "reached |"],
        ["449", "reached |"],
        ["2.48", "missed |"],
        ["7", "missed |"],
    ]
