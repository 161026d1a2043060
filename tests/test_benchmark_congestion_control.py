"""How much of a link's rate a collective has used."""

import pytest

from benchmarks.congestion_control.settings import (
    BYTES,
    EXCHANGES,
    GATHER,
    REDUCE,
    SCATTER,
    bytes_sent,
)
from benchmarks.congestion_control.tables import of_rate
from tf_sparse_strategy.cluster.rate import PAYLOAD


def test_bytes_sent_are_all_parts_but_ones_own():
    for operation in (GATHER, SCATTER):
        assert bytes_sent(operation, 4, 1) == BYTES * 3 / 4
    assert bytes_sent(REDUCE, 4, 1) == 2 * bytes_sent(GATHER, 4, 1)  # a reduce-scatter, and an all-gather
    assert bytes_sent(EXCHANGES, 2, 1) == 4 * BYTES / 2
    assert bytes_sent(REDUCE, 1, 1) == 0


def test_workers_of_a_node_share_its_link():
    assert bytes_sent(EXCHANGES, 4, 2) == 4 * 2 * BYTES * 6 / 8
    assert bytes_sent(SCATTER, 4, 2) == BYTES * 3 / 4  # of the node's sum
    assert bytes_sent(GATHER, 4, 2) == BYTES * 7 / 8  # the ring enters each node once


def test_of_rate_is_one_where_the_link_was_never_idle():
    seconds = bytes_sent(GATHER, 8, 1) * 8 / (PAYLOAD * 100e6)
    assert of_rate(GATHER, seconds, 8, 1, 100e6) == pytest.approx(1)
    assert of_rate(GATHER, 2 * seconds, 8, 1, 100e6) == pytest.approx(0.5)
