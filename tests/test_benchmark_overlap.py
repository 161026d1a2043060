"""The largest speed-up that hiding can give."""

import pytest

from benchmarks.overlap.tables import largest_speedup


def test_communication_that_takes_no_time_costs_nothing():
    assert largest_speedup(0.1, 10**6, 8, alpha=0, beta=0) == pytest.approx(8)


def test_what_fits_behind_forward_and_backward_costs_nothing():
    assert largest_speedup(0.1, 10**6, 4, alpha=0, beta=0.1 / (3 * 0.25 * 10**6)) == pytest.approx(4)


def test_by_equation_6():
    """P (t_ff + t_bp) / (t_ff + t_bp + t_ar - min(t_rs, t_bp) - min(t_ag, t_ff))."""
    forward, nbytes, workers, alpha, beta = 0.1, 2_000_000, 4, 1e-3, 1e-7
    half = 3 * (alpha + nbytes * beta / 4)
    assert forward < half < 2 * forward
    total = 3 * forward + 2 * half - half - forward
    speedup = largest_speedup(forward, nbytes, workers, alpha, beta)
    assert speedup == pytest.approx(workers * 3 * forward / total)
