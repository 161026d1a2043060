"""What trials cost, against their limit."""

import pytest

from tf_sparse_strategy.overlap import search
from tf_sparse_strategy.overlap.trials import Trials

BUILDING, CALLS = 5.0, 12


def step_seconds(size):
    return 0.1 + abs(size - 4) / 100


@pytest.mark.parametrize("limit", [0.01, 0.1, 1.0])
def test_they_stay_within_their_part_of_the_training(limit):
    """On a clock of their own: when one ends, all have cost their part, but for what the last one's slow
    steps have taken more than any before."""
    trials, clock, size = Trials(limit), 0.0, 9
    surprise = CALLS * (step_seconds(9) - step_seconds(4))
    waited = 0
    while size is not None:
        spent = BUILDING + CALLS * step_seconds(size)
        clock += spent
        trials.note(size, step_seconds(size), spent, CALLS)
        assert trials.cost >= BUILDING * (len(trials.seconds) - 1)
        assert trials.cost <= limit * clock + surprise
        calls = trials.calls_until_next()
        waited += calls
        idle = calls * step_seconds(trials.best)
        trials.note_training(idle)
        clock += idle
        size = search.suggest(range(1, 10), trials.seconds)
    assert trials.best == 4 and len(trials.seconds) == search.TRIALS
    assert clock < 1.2 * trials.cost / limit + 50  # and no longer than needed
    assert (waited > 0) == (limit < 1)


def test_a_later_run_goes_on():
    """As one that was not interrupted, but for the time that has passed since its last trial."""
    whole = Trials(0.1)
    for size in (9, 3, 6):
        parts = Trials(0.1, whole.record) if whole.seconds else Trials(0.1)
        for trials in (whole, parts):
            trials.note(size, step_seconds(size), BUILDING, CALLS)
        assert parts.record == whole.record
        assert parts.calls_until_next() == whole.calls_until_next()
        assert search.suggest(range(1, 10), parts.seconds) == search.suggest(range(1, 10), whole.seconds)


def test_a_trial_without_an_end_costs_what_it_has_taken():
    trials = Trials(0.5)
    trials.note_dropped(7.0, calls=3)  # the first, which costs nothing
    assert trials.cost == 0 and trials.record["trained"] == 7.0
    trials.note(4, seconds=1.0, spent=20.0, calls=10)
    trials.note_dropped(9.0, calls=5)
    assert trials.cost == 4.0 and trials.record["trained"] == 36.0


def test_the_first_size_costs_nothing():
    trials = Trials(0.5)
    trials.note(1, seconds=1.0, spent=20.0, calls=10)
    assert trials.cost == 0
    assert trials.calls_until_next() == 0  # 20 s of training pay for a trial of 10 s
    trials.note(2, seconds=2.0, spent=30.0, calls=10)
    assert (trials.best, trials.cost) == (1, 20.0)
    assert trials.calls_until_next() == 30  # 40 s are half of 80 s, of which 50 have passed


def test_a_faster_size_costs_its_building_alone():
    trials = Trials(1.0)
    trials.note(1, seconds=1.0, spent=10.0, calls=10)
    trials.note(2, seconds=0.5, spent=8.0, calls=10)
    assert trials.best == 2 and trials.cost == 3.0
