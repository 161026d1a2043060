"""What part of a stall is hidden, and what is said of it."""

import math

import pytest

from benchmarks.scheduling_2d.settings import ALONE, BOTH, GATHERED, REDUCED, WITH, WITHOUT
from benchmarks.scheduling_2d.tables import part_hidden, stall, throughput, verdict

SECONDS = {ALONE: [9.0, 10.0, 12.0], WITHOUT: [14.0], WITH: [11.0, 11.0, 20.0], BOTH: [12.0]}
RIGHT = {WITH: 0.0, BOTH: 1e-7, ALONE: 0.1, GATHERED: 1e-8}


def test_part_hidden_is_of_the_stall_not_of_the_step():
    """By medians of 10 s without communication, 14 s at once, 11 s delayed."""
    job = {"seconds": SECONDS}
    assert stall(job, WITHOUT) == pytest.approx(4)
    assert part_hidden(job, WITH) == pytest.approx(0.75)


def said_of(goal=0.5, **differences):
    """The verdict."""
    return verdict({"seconds": SECONDS, "goal": goal, "differences": RIGHT | differences})


def test_the_goal_is_for_both_halves_together():
    """50 % of the stall."""
    assert said_of().startswith("- 50% of the stall hidden (goal 50%: reached), 75% by delayed rows alone")
    assert "missed" in said_of(goal=0.6)


@pytest.mark.parametrize(
    "differences",
    [
        {WITH: 1e-3},
        {BOTH: 1e-3},
        {BOTH: math.inf},
        {WITH: math.inf},
        {ALONE: 0.0},
        {GATHERED: 1e-3},
    ],
)
def test_other_weights_are_told(differences):
    """But for rounding they have to be alike; without communication they have to differ."""
    assert "NOT THE SAME WEIGHTS" in said_of(**differences)
    assert "to the bit, with DeAR within 1.0e-07, Horovod's within 1.0e-08." in said_of()
    assert "within 1.0e-09, with DeAR within 1.0e-07" in said_of(**{WITH: 1e-9})


def test_throughput_is_beside_horovods_better_way():
    """Of 1,400 words in 14 s at once, and in 28 s by the better of Horovod's ways."""
    job = {"seconds": SECONDS, "words": 1400, "horovod": {GATHERED: [28.0], REDUCED: [56.0]}}
    *_, row = throughput({"a": job}).splitlines()
    assert row.startswith("| a | 25 (0.50) | 50 (1.00) | 100 (2.00) |")
    del job["horovod"][REDUCED]
    *_, row = throughput({"a": job}).splitlines()
    assert row.startswith("| a |  | 50 (1.00) | 100 (2.00) |")
