"""The verdicts on training with sparse sums, from made-up measurements."""

import pytest

from benchmarks.sparse_training import tables


def job(computation: float, auto: list[float], differ=(tables.ALONE,), differ_closely=()) -> dict:
    """Dense takes 10 s and, in a round that is slow for all, 20 s; sparse ways take 5 s and 10 s."""
    close = {"dense": [10.0, 10.0, 20.0], "other": [11.0, 11.0, 22.0], tables.AUTO: auto}
    seconds = close | {tables.ALONE: [computation] * 3}
    seconds |= {name: [5.0, 5.0, 10.0] for name in tables.SPARSE}
    found = {"parameters": 10**6, "differ": list(differ), "seconds": seconds}
    return found | {"close": {"seconds": close, "differ": differ_closely}} if computation > 5 else found


def test_where_communication_dominates_the_goal_is_that_of_the_best_sparse_way():
    lines = tables.verdict("m", job(4.0, [5.0, 5.0, 10.0]))
    assert "HiTopK does 2.00 times the steps of the best dense setting, dense" in lines[0]
    assert "(goal 1.4: reached)" in lines[0] and "Auto takes 0.500 times" in lines[1]


@pytest.mark.parametrize("auto, said", [(10.1, "1.010 times"), (10.3, "1.030 times")])
def test_auto_is_compared_round_by_round(auto, said):
    """Of medians the slow round would decide."""
    lines = tables.verdict("m", job(9.0, [auto, 2 * auto, 2 * auto]))
    assert "computation dominates" in lines[0] and said in lines[1]
    assert ("reached" in lines[1]) == (auto == 10.1)


def test_weights_that_differ_are_named():
    wrong = tables.verdict("m", job(4.0, [5.0] * 3, differ=("dense", tables.ALONE)))
    assert wrong[-1] == "- m: WORKERS HOLD DIFFERENT WEIGHTS by dense."
    wrong = tables.verdict("m", job(9.0, [5.0] * 3, differ_closely=(tables.AUTO,)))
    assert wrong[-1] == "- m: WORKERS HOLD DIFFERENT WEIGHTS by Auto."
    blind = tables.verdict("m", job(4.0, [5.0] * 3, differ=()))
    assert "found none where there had to be some" in blind[-1]
