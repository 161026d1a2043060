"""Calibration of the cost model: the same on all workers, and a prediction of what it was made from."""

import pytest
import tensorflow as tf

from tests.multiprocess import sparse_runs
from tf_sparse_strategy import link_measurement
from tf_sparse_strategy.communication import (
    DGC,
    HiTopK,
    LinkModel,
    OkTopK,
    ShardedTopK,
    Torus2D,
    work,
)

FREE = LinkModel(0.0, 0.0, 0.0, 0.0)
CODED = ShardedTopK(0.01, wire_dtype="float16", index_coding="delta")


@pytest.fixture(scope="module")
def apart(topology):
    """Every worker a node of its own."""
    return sparse_runs.apart(topology)


@pytest.fixture(scope="module")
def links(apart):
    return link_measurement.measure(apart)


@pytest.mark.parametrize("scheme", [HiTopK(0.01), CODED], ids=str)
def test_computing_takes_time(scheme, apart, links):
    """Not negative, at most a microsecond per element; agreed on by all workers."""
    found = work.calibrated(links, scheme, apart)
    if apart.topology.num_workers == 1:
        assert found == links
        return
    assert 0 <= found.selection < 1e-6
    assert -1 < found.selection_start < 1
    numbers = tf.constant([found.selection, found.selection_start], tf.float64)
    assert (apart.all_gather(numbers[tf.newaxis]).numpy() == numbers.numpy()).all()


@pytest.mark.parametrize("start", [3e-3, -1e-3])
def test_predicts_the_sums_it_was_made_from(apart, monkeypatch, start):
    """T = messages + start + selection n, exactly: with times that are made up, of all of a step."""
    if apart.topology.num_workers == 1:
        pytest.skip("one worker sends nothing")
    links, scheme = LinkModel(1e-5, 1e-9, 1e-4, 4e-8, phase=2e-3), HiTopK(0.01)

    def seconds(scheme, n, rounds, collectives):
        return scheme.cost(n, collectives.topology, links).seconds + start + 2e-9 * n

    monkeypatch.setattr(work, "_seconds", seconds)
    model = work.calibrated(links, scheme, apart)
    assert model.selection_start == pytest.approx(start)
    for n in (1 << 14, 1 << 20, 1 << 23):
        predicted = scheme.cost(n, apart.topology, model).seconds
        assert predicted == pytest.approx(seconds(scheme, n, 1, apart))


def test_a_line_does_not_fall(apart, monkeypatch):
    """Or it would promise vectors of no time at all."""
    if apart.topology.num_workers == 1:
        pytest.skip("one worker sends nothing")
    monkeypatch.setattr(work, "_seconds", lambda scheme, n, rounds, collectives: 1 / n)
    model = work.calibrated(FREE, HiTopK(0.01), apart)
    assert (model.selection, model.selection_start) == (0, pytest.approx(1 / (1 << 14)))


@pytest.mark.parametrize("beta, largest", [(1e-9, 1 << 23), (1e-5, 1 << 19), (1.0, 1 << 15)])
def test_slow_links_are_not_kept_busy_for_minutes(apart, monkeypatch, beta, largest):
    """At 1e-5 seconds per byte 1 % of 2^19 elements take 0.4 seconds."""
    if apart.topology.num_workers != 2:
        pytest.skip("counted for two workers")
    sizes = []

    def seconds(scheme, n, rounds, collectives):
        sizes.append(n)
        return 1.0

    monkeypatch.setattr(work, "_seconds", seconds)
    work.calibrated(LinkModel(0.0, beta, 0.0, beta), HiTopK(0.01), apart)
    assert sizes == [1 << 14, largest]


@pytest.mark.parametrize("scheme", [Torus2D(), HiTopK(1.0)], ids=str)
def test_exact_sums_are_not_timed(scheme, apart, monkeypatch):
    monkeypatch.delattr(work, "_seconds")
    assert work.calibrated(FREE, scheme, apart) == FREE


def test_nothing_is_computed_where_nothing_is_dropped(topology):
    together = sparse_runs.placed(topology, [0] * topology.num_workers)
    assert work.calibrated(FREE, HiTopK(0.01), together) == FREE


@pytest.mark.parametrize("scheme", [HiTopK(0.01), DGC(0.01), OkTopK(0.01)], ids=str)
def test_emptied_state_forgets_gradients(scheme, apart):
    """The sum after is that of a first step, by the same thresholds, which stay."""
    if apart.topology.num_workers == 1:
        pytest.skip("one worker keeps nothing")
    n = 4096
    x = tf.random.stateless_normal([n], [7, apart.topology.rank])
    step, variables = work.step_of(scheme, n, apart)
    first = step(x).numpy()
    thresholds = {name: v.numpy() for name, v in variables.items() if "threshold" in name}
    other = step(x).numpy()
    for name, value in thresholds.items():
        variables[name].assign(value)  # which had followed what was kept
    work.empty(variables)
    assert {name: variables[name].numpy() for name in thresholds} == thresholds
    again = step(x).numpy()
    assert (first == again).all()
    assert (other != again).any()  # negative control: what was kept counts
