"""LARS and LAMB over real workers: divided norms change nothing, and "auto" decides alike for all."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import lars_pto
from lars_pto import decision, norms
from tests.lars_layers import MODELS, train
from tests.multiprocess import oracle

CASES = {
    **{model: (model, {}) for model in MODELS},
    "rows of a small layer": ("many", dict(sparse=0)),
    "rows of a cut layer": ("one huge", dict(sparse=1)),
    "frozen layers": ("many", dict(frozen=(0, 3, 6))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_divided_is_undivided(comm, strategy, name, case):
    """The same weights and slots to the bit, and on all workers; a cut layer to the last bits."""

    model, given = CASES[case]

    def run(parallel, where):
        make = getattr(lars_pto, name)
        return train("keras3", lambda: make(0.5, parallel=parallel), model, where, **given)

    ours, optimizer = run("on", strategy)
    undivided, _ = run("off", strategy)
    alone = oracle.single_process(
        comm, lambda _: dict(enumerate(run("off", None)[0])), dict(enumerate(undivided))
    )
    for a, b, c in zip(ours, undivided, alone.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-7, atol=1e-9)
        np.testing.assert_allclose(b, c, rtol=1e-6, atol=1e-7)
        if model != "one huge":
            np.testing.assert_array_equal(a, b)
        oracle.assert_identical(comm, a)
    if model != "nothing to measure":
        assert optimizer.parallel_decision.divide == (strategy.num_replicas_in_sync > 1)


def test_the_operator_computes_each_tensor_once(comm, strategy):
    """Results carry the number of the worker that computed them, and are the same everywhere."""
    tensors = [tf.fill([n], 1.0) for n in (7, 7, 30, 1, 12)]
    rank = float(comm.topology.rank)

    def who(x):
        return tf.stack([tf.reduce_sum(x), tf.constant(rank)])

    run = tf.function(lambda: strategy.run(lambda: lars_pto.parallel_tensor_op(who, tensors)))
    for _ in range(2):
        calls, _ = strategy.extended.collectives.traffic()
        results = np.array([r.numpy() for r in run()])
        assert results[:, 0].tolist() == [7, 7, 30, 1, 12]
        assert set(results[:, 1]) == set(range(min(comm.topology.num_workers, len(tensors))))
        calls_after, _ = strategy.extended.collectives.traffic()
        assert calls_after - calls == (comm.topology.num_workers > 1)  # one message carries all results
        oracle.assert_identical(comm, results)


def test_no_tensors_and_fewer_than_workers(strategy):
    for tensors in ([], [tf.fill([3], 2.0)]):
        calls, _ = strategy.extended.collectives.traffic()
        results = strategy.run(lambda given=tensors: lars_pto.parallel_tensor_op(tf.reduce_sum, given))
        assert [float(r) for r in results] == [6.0] * len(tensors)
        calls_after, _ = strategy.extended.collectives.traffic()
        assert calls_after - calls == (len(tensors) > 0 and strategy.num_replicas_in_sync > 1)


def test_a_nan_on_one_worker_reaches_all(comm, strategy):
    """Only the worker that computes a tensor sees its own NaN; the gathered result is everyone's."""
    last = comm.topology.rank == comm.topology.num_workers - 1
    tensors = [tf.constant([float("nan") if last else 1.0])] * (comm.topology.num_workers + 2)

    def run():
        return strategy.run(lambda: lars_pto.parallel_tensor_op(tf.reduce_sum, tensors))

    results = np.array([r.numpy() for r in tf.function(run)()])
    assert np.isnan(results).any()
    oracle.assert_identical(comm, results)


def test_auto_measures_once_and_all_agree(comm, strategy, monkeypatch, caplog):
    measured = []
    original = decision.median_seconds

    def counted(*runs, ready):
        measured.extend(original(*runs, ready=ready))
        return measured

    monkeypatch.setattr(decision, "median_seconds", counted)
    with caplog.at_level(logging.INFO, "lars_pto.norms"):
        _, optimizer = train("keras3", lambda: lars_pto.LARS(0.5), "many", strategy)
    chosen = optimizer.parallel_decision
    assert chosen.reason in caplog.text
    oracle.assert_identical(comm, int(chosen.divide))
    if comm.topology.num_workers == 1:
        assert not measured and chosen.reason == "there is one worker"
        return
    assert len(measured) == 2
    assert f"slowest of {comm.topology.num_workers} workers" in chosen.reason
    text = tf.strings.unicode_decode(chosen.reason, "UTF-8")
    oracle.assert_identical(comm, text)


@pytest.mark.parametrize("slow", ["alone", "divided"])
def test_auto_chooses_what_is_faster_for_the_slowest(comm, strategy, monkeypatch, slow):
    """One worker alone finds one of the ways slow; all of them turn to the other."""
    if comm.topology.num_workers == 1:
        return

    def delayed(*runs, ready):
        ready()
        for run in runs:
            run()
        slower = comm.topology.rank == 0
        return [1.0 + (slower and slow == way) for way in ("alone", "divided")]

    monkeypatch.setattr(norms.decision, "median_seconds", delayed)
    _, optimizer = train("keras3", lambda: lars_pto.LARS(0.5), "many", strategy)
    assert optimizer.parallel_decision.divide == (slow == "alone")


def test_divided_norms_travel_as_one_message_of_their_size(comm, strategy):
    """2 float64 for each piece, padded to the longest share: 3 layers on P workers."""
    layers = [tf.ones([3, 3]), tf.ones([3, 3]), tf.ones([3, 3])]

    @tf.function
    def run():
        return strategy.run(lambda: norms.divided_sums(layers, layers, [0.0] * 3))

    run()
    workers = comm.topology.num_workers
    calls, sent = strategy.extended.collectives.traffic()
    np.testing.assert_array_equal(run(), [[9.0, 9.0]] * 3)
    calls_after, sent_after = strategy.extended.collectives.traffic()
    assert calls_after - calls == (workers > 1)
    longest = -(-3 // workers)
    assert sent_after.total - sent.total == (workers - 1) * longest * 2 * 8
