"""The measured model: the same numbers on every worker, of the links that exist."""

import dataclasses

import numpy as np
import pytest

from tf_sparse_strategy import link_measurement
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.topology import Group


@pytest.fixture(scope="module")
def model(comm):
    return link_measurement.measure(comm)


def test_all_workers_hold_the_same_numbers(model, comm):
    mine = np.array(dataclasses.astuple(model))
    for other in comm.all_gather(mine[np.newaxis]):
        np.testing.assert_array_equal(other, mine)


def test_links_that_exist_cost_something_and_others_nothing(model, topology):
    inside = not topology.is_trivial(Group.LOCAL)
    between = not topology.is_trivial(Group.CROSS)
    assert (model.local_alpha > 0) == (model.local_beta > 0) == inside
    assert (model.cross_alpha > 0) == (model.cross_beta > 0) == between


def test_one_worker_has_no_links(model, topology):
    if topology.num_workers == 1:
        assert model == LinkModel(0.0, 0.0, 0.0, 0.0)


def test_figures_are_those_of_a_machine(model):
    """Loopback: far below a second per message and above a terabyte per second."""
    for alpha in (model.local_alpha, model.cross_alpha, model.phase, model.exchange):
        assert 0 <= alpha < 1
    for beta in (model.local_beta, model.cross_beta):
        assert beta == 0 or 1e-12 < beta < 1e-6


def test_starts_are_what_chains_take_without_their_messages(monkeypatch, comm, topology):
    if topology.num_workers == 1:
        pytest.skip("one worker has no links")
    alpha, members = 1e-3, topology.num_workers
    monkeypatch.setattr(link_measurement, "_alphas", lambda _: (alpha, alpha))
    monkeypatch.setattr(link_measurement, "_beta", lambda *_: 0.0)
    chained = {link_measurement._reduced: 0.1, link_measurement._exchanged: 0.25}
    monkeypatch.setattr(link_measurement, "_chained", lambda _, __, collective: chained[collective])
    found = link_measurement.measure(comm)
    assert found.phase == pytest.approx(0.1 - 2 * (members - 1) * alpha)
    assert found.exchange == pytest.approx(0.25 - 2 * alpha - found.phase)
    chained[link_measurement._reduced] = 0.0
    found = link_measurement.measure(comm)
    assert (found.phase, found.exchange) == (0, pytest.approx(0.25 - 2 * alpha))


def test_workers_that_cannot_reach_each_other_fail_together(monkeypatch, comm, topology):
    if topology.num_workers == 1:
        pytest.skip("one worker pings nobody")
    monkeypatch.setattr(link_measurement, "own_address", lambda: "192.0.2.1")  # nobody's, by RFC 5737
    monkeypatch.setattr(link_measurement, "PATIENCE", 0.5)
    with pytest.raises(RuntimeError, match="cannot reach each other by TCP"):
        link_measurement.measure(comm)
