"""Auto under real workers: all decide alike, residuals follow, and `fit` trains with what was chosen."""

import copy
import dataclasses
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import oracle, sparse_runs
from tests.thorough import thorough_if
from tf_sparse_strategy import link_measurement, residual
from tf_sparse_strategy.communication import (
    Auto,
    Dense,
    HiTopK,
    LinkModel,
    ShardedTopK,
    TopKAllGather,
    auto,
)
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.gradients import GradientReducer

N = 1001
FREE = LinkModel(0.0, 0.0, 0.0, 0.0, selection=1e-18)  # known, or it would be measured
SLOW = LinkModel(0.0, 0.0, 0.0, 1e-3)
LATE = LinkModel(0.0, 0.0, 0.0, 1e-3, phase=3.0)  # collectives start late, too


def names(scheme, topology):
    return [type(s).__name__ for s in scheme.schemes(topology)]


def take(scheme, here, links):
    """Selecting takes what they say, for all schemes."""
    scheme.measured.models = [links] * len(scheme.schemes(here.topology))


def run_of(here, links):
    scheme = Auto(0.05, links=links).prepare(here)
    take(scheme, here, links)
    return sparse_runs.Run(scheme, here, N)


def fastest(here, links):
    """Of sparse ones, by their cost: by bytes HiTopK on two nodes of two, by waiting TopKAllGather."""
    schemes = (HiTopK(0.05), ShardedTopK(0.05), TopKAllGather(0.05))
    found = min(schemes, key=lambda scheme: scheme.cost(N, here.topology, links).seconds)
    if here.topology.num_workers == 4:
        assert type(found) is {SLOW: HiTopK, LATE: TopKAllGather}[links]
    return found


def review(run, here, links):
    """As at the beginning of an epoch after which the links are others."""
    take(run.scheme, here, links)
    bucket = sparse_runs.bucket_of(N)
    run.scheme.review([(bucket, residual.State(run.variables))], here)
    return names(run.scheme, here.topology)[int(run.variables[CHOICE])]


MEASURED = {}  # by where workers stand, as measuring takes seconds


@pytest.fixture
def measured(here):
    if here.topology not in MEASURED:
        MEASURED[here.topology] = Auto(0.05).prepare(here)
    return MEASURED[here.topology]


def just_measured(measured, recheck):
    known = copy.copy(measured.measured)
    known.ended = time.monotonic()
    return dataclasses.replace(measured, recheck=recheck, measured=known)


def test_what_is_measured_is_the_same_everywhere(here, comm, measured):
    scheme = just_measured(measured, 0.01)
    found = [[model.cross_beta, model.selection] for model in scheme.measured.models]
    if here.topology.num_workers > 1:
        kinds = dict(zip(names(scheme, here.topology), found, strict=True))
        for kind, (cross_beta, selection) in kinds.items():
            assert cross_beta > 0
            assert (0 <= selection < 1e-5) if "TopK" in kind else selection == 0
        assert kinds["HiTopK"] != kinds["ShardedTopK"]
    for other in comm.all_gather(tf.constant([found], tf.float64)):
        np.testing.assert_array_equal(other, found)
    run = sparse_runs.Run(scheme, here, N)
    number = run.variables[CHOICE].numpy()
    assert (comm.all_gather(run.variables[CHOICE][tf.newaxis]).numpy() == number).all()
    run.step(tf.ones([N]))


@pytest.mark.parametrize("mode", thorough_if(lambda mode: mode == "eager", ["eager", "function"]))
def test_it_is_the_scheme_it_chooses(here, mode):
    p, rank = here.topology.num_workers, here.topology.rank
    data = sparse_runs.floats(3, p, N, 3)
    for links, same in ((FREE, Dense()), (SLOW, fastest(here, SLOW)), (LATE, fastest(here, LATE))):
        run, plain = run_of(here, links), sparse_runs.Run(same, here, N)
        chosen = names(run.scheme, here.topology)[int(run.variables[CHOICE])]
        assert p == 1 or chosen == type(same).__name__
        step = run.step if mode == "function" else run.eager_step
        for g in data:
            mine = tf.constant(g[rank])
            np.testing.assert_allclose(step(mine), plain.step(mine), rtol=1e-6, atol=1e-6)


def test_residuals_follow_the_choice(here):
    """Sparse, exact, sparse again, by the same traced function; nothing is lost on the way."""
    p, rank = here.topology.num_workers, here.topology.rank
    run, data = run_of(here, SLOW), sparse_runs.integers(3, p, N, 8)
    sums, kept, chosen = [], [], []
    for g, links in zip(data, (SLOW, SLOW, FREE, FREE, SLOW, SLOW, LATE, SLOW), strict=True):
        chosen.append(review(run, here, links))
        sums.append(run.step(tf.constant(g[rank])).numpy())
        kept.append(run.kept(N).any())
        np.testing.assert_array_equal(sum(sums) + run.kept(N), data[: len(sums)].sum(axis=(0, 1)))
    if p > 1:
        slow, late = (type(fastest(here, links)).__name__ for links in (SLOW, LATE))
        assert chosen[:-1] == [slow, slow, "Dense", "Dense", slow, slow, late]
        assert chosen[-1] in (slow, late)  # for little it stays
        assert kept == [True, True, False, False, True, True, True, True]


def test_an_exact_bucket_that_is_not_finite_has_a_say(here):
    """Or what another bucket's sparse scheme sent would be lost with the skipped step."""
    run = run_of(here, FREE)
    for value in (1.0, np.nan):
        state = residual.State(run.variables)
        run.scheme.reduce(tf.fill([N], value), state, here)
        assert bool(state.finite) == np.isfinite(value)


def test_a_change_is_decided_by_all_and_logged_once(here, caplog):
    run = run_of(here, LinkModel(0.0, 0.0, 0.0, 1e-9, selection=1.0))  # slow processors
    assert names(run.scheme, here.topology)[int(run.variables[CHOICE])] in ("Dense", "Torus2D")
    if here.topology.num_workers == 1:
        return
    with caplog.at_level("WARNING"):  # the others would stay: rank 0 decides
        name = type(fastest(here, SLOW)).__name__
        assert review(run, here, SLOW if here.topology.rank == 0 else FREE) == name
    said = [r.getMessage() for r in caplog.records if "now go by" in r.getMessage()]
    assert len(said) == (here.topology.rank == 0)
    assert not said or f"{N} elements" in said[0] and f"{name}(density=0.05" in said[0]


def test_links_that_cannot_be_measured_again_end_nothing(here, measured, monkeypatch, caplog):
    run = sparse_runs.Run(just_measured(measured, 0.9), here, N)
    known, bucket = run.scheme.measured, sparse_runs.bucket_of(N)
    models, known.ended = known.models, known.ended - 100 * known.seconds

    def fail(collectives):
        raise RuntimeError("no answer")

    monkeypatch.setattr(link_measurement, "measure", fail)
    for _ in range(2):
        run.scheme.review([(bucket, residual.State(run.variables))], here)
    assert known.models is models
    assert caplog.text.count("could not be measured again") == (here.topology.num_workers > 1)


def test_measuring_again_takes_no_more_than_its_part(here, measured, monkeypatch):
    run = sparse_runs.Run(just_measured(measured, 0.01), here, N)
    known, bucket = run.scheme.measured, sparse_runs.bucket_of(N)
    calls = []
    monkeypatch.setattr(Auto, "_measure", lambda self, comm: calls.append(1) or known)
    states = [(bucket, residual.State(run.variables))]
    run.scheme.review(states, here)
    assert not calls
    if here.topology.rank == 0:  # it is rank 0's clock that counts
        known.ended = time.monotonic() - 101 * known.seconds
    run.scheme.review(states, here)
    assert len(calls) == (here.topology.num_workers > 1)


def test_first_choices_are_told_with_their_reasons(here, caplog):
    """By the first worker, to who has not set absl's verbosity."""
    with caplog.at_level("WARNING"):
        run_of(here, SLOW)
    said = [r.getMessage() for r in caplog.records if "elements of gradients go by" in r.getMessage()]
    assert len(said) == (here.topology.rank == 0)
    reason = "predicted" if len(here.topology.nodes) > 1 else "one node has no other way"
    assert not said or f"{N} elements" in said[0] and reason in said[0]


def test_buckets_are_small_where_dense_is_chosen(comm, topology):
    """HiTopK's would start late, and Dense's cost hardly more for being small."""
    for model, kind in ((SLOW, HiTopK), (FREE, Dense)):
        expected = kind if topology.num_nodes > 1 else Dense
        assert Auto(0.1, links=model).prepare(comm).bucket_bytes == expected.bucket_bytes
    assert Dense.bucket_bytes < HiTopK.bucket_bytes == Auto().bucket_bytes


def test_small_vectors_are_apart_only_where_others_are_sent_sparsely(here):
    """One bucket more is one collective more; without it the vector's stays exact, whatever links become."""
    matrix, vector = (tf.Variable(tf.ones(shape)) for shape in ([N, 1], [3]))
    for first, then in ((SLOW, FREE), (FREE, SLOW)):
        scheme = Auto(0.05, links=first).prepare(here)
        take(scheme, here, first)
        reducer = GradientReducer(scheme, here, scheme.bucket_bytes)
        pairs = [(tf.ones_like(v), v) for v in (matrix, vector)]
        np.testing.assert_array_equal(reducer.reduce(pairs)[1], 3 * [here.topology.num_workers])
        if here.topology.num_workers == 1:  # which has nothing to send
            continue
        buckets = [bucket for bucket, _ in reducer.memory.buckets]
        assert [bucket.is_exact for bucket in buckets] == ([False, True] if first is SLOW else [False])
        take(scheme, here, then)
        reducer.memory.begin_epoch(1, [matrix, vector])
        reducer.reduce(pairs)
        assert [bucket for bucket, _ in reducer.memory.buckets] == buckets  # the plan does not follow
        chosen = names(scheme, here.topology)[int(reducer.memory.buckets[0][1][CHOICE])]
        assert chosen in ("Dense", "Torus2D")


def test_fit_changes_its_choice_when_the_links_do(comm, topology, monkeypatch):
    """Measured before the first epoch and at the beginning of the second, which finds other links."""
    found = iter([SLOW, FREE])

    def measure(self, collectives):
        every = [next(found)] * len(self.schemes(collectives.topology))
        return auto._Measured(collectives.topology, every, 0.0, time.monotonic())

    monkeypatch.setattr(Auto, "_measure", measure)
    strategy, model, _ = sparse_runs.fit(keras, Auto(0.1, recheck=0.99), epochs=2)
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)
    if topology.num_nodes > 1:
        assert next(found, None) is None  # twice measured
        states = [state for bucket, state in strategy.residual.buckets if not bucket.is_exact]
        schemes = [strategy.extended.gradients.scheme.in_use(state, topology)[-1][0] for state in states]
        assert schemes == [Dense()] * len(states) and all(state["changes"] == 1 for state in states)


def test_fit(comm, topology):
    """With the epochs' reviews; all workers end with the same weights."""
    strategy, model, history = sparse_runs.fit(keras, Auto(0.1, links=SLOW), epochs=3)
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)
    assert history.history["loss"][-1] < history.history["loss"][0]
    apart = topology.num_nodes > 1
    kept = [r for r in sparse_runs.kept(strategy.extended.gradients) if r.ndim]
    assert any(r.any() for r in kept) == apart


def test_links_are_measured_again_when_it_is_due(here, monkeypatch, measured):
    """So long after the last time that it takes the part of the time that `recheck` is."""
    if here.topology.num_workers == 1:
        pytest.skip("one worker has no links")
    scheme, calls = just_measured(measured, 0.01), []
    known = scheme.measured
    known.seconds = 1.0
    run = sparse_runs.Run(scheme, here, N)

    def measure(self, collectives):
        calls.append(1)
        return auto._Measured(known.topology, known.models, 1.0, time.monotonic())

    monkeypatch.setattr(Auto, "_measure", measure)
    found = []
    for ended in (50, 101, None):  # seconds ago; the last is that of the one before
        if ended is not None:
            known.ended = time.monotonic() - ended
        scheme.review([(sparse_runs.bucket_of(N), residual.State(run.variables))], here)
        found.append(len(calls))
    assert found == [0, 1, 1]
