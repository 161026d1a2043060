"""What part of a stall is hidden."""

import pytest

from benchmarks.scheduling_2d.settings import ALONE, WITH, WITHOUT
from benchmarks.scheduling_2d.tables import part_hidden, stall


def test_part_hidden_is_of_the_stall_not_of_the_step():
    """By medians of 10 s without communication, 14 s at once, 11 s delayed."""
    job = {"seconds": {ALONE: [9.0, 10.0, 12.0], WITHOUT: [14.0], WITH: [11.0, 11.0, 20.0]}}
    assert stall(job, WITHOUT) == pytest.approx(4)
    assert part_hidden(job) == pytest.approx(0.75)
