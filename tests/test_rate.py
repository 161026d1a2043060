"""Rates as a user writes them, shapers as the kernel wants them."""

import pytest

from tf_sparse_strategy.cluster.rate import parse_rate, shaper


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 2 * 10**8), ("1.5Gbit", 15 * 10**8), (" 64kbit", 64000)]
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "200", "-1mbit", "0gbit", "200 mbit", "10MB"])
def test_other_texts_are_no_rates(text):
    with pytest.raises(ValueError, match="write e.g. 200mbit"):
        parse_rate(text)


@pytest.mark.parametrize(("rate", "burst"), [(64000, 16384), (2 * 10**8, 25000), (10**9, 125000)])
def test_a_link_stores_a_millisecond_and_at_least_a_packet(rate, burst):
    assert shaper(rate, buffer=0.05) == f"tbf rate {rate}bit burst {burst} latency 50000us"


@pytest.mark.parametrize("buffer", [0, -1.0, 40.0, float("nan")])
def test_a_queue_that_the_kernel_cannot_hold(buffer):
    """Its bytes are 32 bits: more would wrap to a short one."""
    with pytest.raises(ValueError, match=r"is not between 0 and 34\.3\d* seconds of 1000000000 bits"):
        shaper(10**9, buffer)
