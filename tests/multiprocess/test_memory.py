"""Residuals outlive the process: every bit with the same workers, their sum with others."""

import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.sparse_runs import apart, kept, moved, paired, placed, sent_in_all, step
from tests.thorough import thorough
from tf_sparse_strategy import agreement, communication
from tf_sparse_strategy.bucketing import BucketPlan
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import (
    DGC,
    Dense,
    Float16,
    GTopK,
    Guarded,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.residual import RESIDUAL
from tf_sparse_strategy.topology import Topology

EACH = [kind(0.1) for kind in (HiTopK, TopKAllGather, ShardedTopK, GTopK, OkTopK, DGC)]
EACH += [Guarded(OkTopK(0.05), limit=1e-9, every=2, action="density")]


@pytest.mark.parametrize("scheme", EACH, ids=repr)
@pytest.mark.parametrize(
    "when, place",
    [("before the first step", apart), ("later", apart), pytest.param("later", paired, marks=thorough)],
)
def test_every_bit_comes_back(comm, topology, variables, scheme, when, place):
    here = place(topology)
    reducer = GradientReducer(scheme, here, bucket_bytes=64)
    for seed in range(3):
        step(reducer, variables, topology, seed)
    blob, saved = moved(comm, reducer.memory.serialize()), kept(reducer)
    assert (topology.num_workers > 1) == any(r.any() for r in saved)
    onward = [step(reducer, variables, topology, seed) for seed in (3, 4)]
    other = GradientReducer(scheme, here, bucket_bytes=64)
    if when == "later":
        step(other, variables, topology, 9)
    other.memory.deserialize(blob)
    again = [step(other, variables, topology, seed) for seed in (3, 4)]
    for one, two in zip(kept(reducer), kept(other), strict=True):
        np.testing.assert_array_equal(one.reshape(-1).view(np.int32), two.reshape(-1).view(np.int32))
    np.testing.assert_array_equal(onward, again)
    assert not other.memory._restored, "all workers' residuals are not held on to"


def test_what_is_long_is_gathered_in_pieces(comm, topology, variables, monkeypatch):
    """Of 17 numbers of a worker at most, with those of all alike: Gloo gives each operation a minute."""
    here = apart(topology)
    reducer = GradientReducer(HiTopK(0.1), here, bucket_bytes=1 << 20)
    step(reducer, variables, topology, 0)
    whole, calls = reducer.memory.serialize(), here.traffic()[0]
    monkeypatch.setattr(agreement, "PIECE", 17 * 4 * topology.num_workers)
    assert reducer.memory.serialize() == whole
    if topology.num_workers > 1:
        assert here.traffic()[0] - calls > len(reducer.memory.buckets)


def test_steps_are_counted_on_when_a_phase_is_added(comm, topology, variables):
    phases, here = [(0, HiTopK(0.5)), (2, HiTopK(0.1))], apart(topology)
    old = GradientReducer(communication.Piecewise(phases, unit="step"), here, bucket_bytes=100)
    for seed in range(3):
        step(old, variables, topology, seed)
    blob = moved(comm, old.memory.serialize())
    longer = communication.Piecewise([*phases, (5, Dense())], unit="step")
    new = GradientReducer(longer, here, bucket_bytes=100)
    new.memory.deserialize(blob)
    step(new, variables, topology, 3)
    if topology.num_workers > 1:
        assert {int(state["step"]) for bucket, state in new.memory.buckets if not bucket.is_exact} == {4}


@pytest.mark.parametrize(
    "scheme",
    [
        HiTopK(0.05),
        HiTopK(0.05, error_feedback=False),
        Piecewise([(0, HiTopK(0.05)), (9, Dense())]),
        Guarded(HiTopK(0.05), limit=1.0),
    ],
    ids=repr,
)
def test_what_waits_of_vectors_arrives_where_they_are_summed_exactly(
    comm, topology, variables, scheme, caplog
):
    """DGC sends of them what it sends of all; others sum them exactly, the first time with what waited."""
    here, vector = apart(topology), [variables[2]]
    assert vector[0].shape == [7]
    old = GradientReducer(DGC(0.05, momentum=0.0), here, bucket_bytes=100)
    given = sum(step(old, vector, topology, seed) for seed in range(3))
    [(_, state)] = old.memory.buckets or [(None, {RESIDUAL: tf.zeros([7])})]
    waits = here.all_reduce(tf.convert_to_tensor(state[RESIDUAL])).numpy()
    blob = moved(comm, old.memory.serialize())
    new = GradientReducer(scheme, here, bucket_bytes=100)
    new.memory.deserialize(blob)
    [first] = new.reduce([(tf.zeros([7]), vector[0])])
    np.testing.assert_array_equal(first, waits)
    assert given.any() and first.numpy().any() == (topology.num_workers > 1)
    assert not new.reduce([(tf.zeros([7]), vector[0])])[0].numpy().any()
    assert "drops the rest" not in caplog.text


def test_every_bit_comes_back_after_what_waited_of_vectors(comm, topology, variables):
    """Thresholds, too: what waited once is not saved again as if it did."""
    here = apart(topology)
    old = GradientReducer(DGC(0.05, momentum=0.0), here, bucket_bytes=100)
    step(old, variables, topology, 0)
    reducer = GradientReducer(OkTopK(0.05), here, bucket_bytes=100)
    reducer.memory.deserialize(moved(comm, old.memory.serialize()))
    for seed in (1, 2):
        step(reducer, variables, topology, seed)
    other = GradientReducer(OkTopK(0.05), here, bucket_bytes=100)
    other.memory.deserialize(moved(comm, reducer.memory.serialize()))
    onward = [[step(r, variables, topology, seed) for seed in (3, 4, 5)] for r in (reducer, other)]
    np.testing.assert_array_equal(*onward)


@pytest.mark.parametrize("kind", ["Auto", "Piecewise"])
def test_an_exact_scheme_begins_with_what_was_restored(comm, topology, variables, kind):
    """Also where it is the first that the other run's scheme, which knew no phases, is followed by."""
    here = apart(topology)
    old = GradientReducer(HiTopK(0.05), here, bucket_bytes=100)
    for seed in range(3):
        step(old, variables, topology, seed)
    blob = moved(comm, old.memory.serialize())
    rest = sent_in_all(old, variables)
    free = communication.LinkModel(0.0, 0.0, 0.0, 0.0, selection=1e-18)
    scheme = communication.Piecewise([(0, Dense()), (9, HiTopK(0.05))])
    if kind == "Auto":
        scheme = communication.Auto(0.05, links=free).prepare(here)  # Dense is chosen
    new = GradientReducer(scheme, here, bucket_bytes=100)
    new.memory.deserialize(blob)
    sums = new.reduce([(tf.zeros_like(v), v) for v in variables])
    np.testing.assert_array_equal(np.concatenate([g.numpy().ravel() for g in sums]), rest)
    assert rest.any() == (topology.num_workers > 1)


@pytest.mark.parametrize("where", ["dense", "one node", "one worker"])
@pytest.mark.parametrize("saved_again", [False, True])
def test_an_exact_run_begins_with_what_was_restored(comm, topology, variables, where, saved_again):
    """Nobody keeps a residual there: the first sum takes all of it along."""
    old = GradientReducer(HiTopK(0.05), apart(topology), bucket_bytes=100)
    for seed in range(3):
        step(old, variables, topology, seed)
    blob = moved(comm, old.memory.serialize())
    rest = sent_in_all(old, variables)
    assert rest.any() == (topology.num_workers > 1)
    there = {
        "dense": apart(topology),
        "one node": placed(topology, [0] * topology.num_workers),
        "one worker": Collectives(Topology((0,), 0)),
    }[where]

    scheme = Dense() if where == "dense" else Piecewise([(0, HiTopK(0.05)), (9, Dense())])

    def reducer():
        return GradientReducer(scheme, there, bucket_bytes=64)

    first = reducer()
    first.memory.deserialize(blob)
    if saved_again:
        first.memory.of(next(iter(old.memory._lists), BucketPlan(())), variables)
        kept_blob = first.memory.serialize()
        first = reducer()
        first.memory.deserialize(kept_blob if where == "one worker" else moved(comm, kept_blob))
    first.reduce([(tf.fill(v.shape, tf.constant(np.nan)), v) for v in variables])  # a step that is skipped
    sums = first.reduce([(tf.zeros_like(v), v) for v in variables])
    np.testing.assert_array_equal(np.concatenate([g.numpy().ravel() for g in sums]), rest)
    for bucket, state in first.memory.buckets:
        assert first.scheme.in_use(state, there.topology)
        assert all(int(state[name]) == 0 for name in state if name == "waits"), bucket
    assert not sent_in_all(first, variables).any()


@pytest.mark.usefixtures("partners")
def test_what_float16_does_not_hold_of_what_was_restored_follows(comm, topology):
    here, steps = apart(topology), 70
    variable = tf.Variable(tf.zeros([101, 1], tf.float16))

    def sum_of(reducer, value):
        [summed] = reducer.reduce([(tf.fill(variable.shape, tf.constant(value, tf.float16)), variable)])
        return summed.numpy().astype(float)

    old = GradientReducer(HiTopK(0.02), here, bucket_bytes=1 << 20)
    sent = sum(sum_of(old, 2048.0) for _ in range(steps))
    new = GradientReducer(Dense(), here, bucket_bytes=1 << 20)
    new.memory.deserialize(moved(comm, old.memory.serialize()))
    parts = [sum_of(new, 0.0)]
    [(_, state)] = new.memory.buckets
    while int(state["waits"]) and len(parts) < 20:
        parts.append(sum_of(new, 0.0))
    assert 1 < len(parts) < 20
    np.testing.assert_array_equal(sent + sum(parts), np.full([101, 1], steps * topology.num_workers * 2048.0))


@pytest.mark.parametrize("scheme", [Float16(), Piecewise([(0, Float16()), (9, Dense())])], ids=repr)
@pytest.mark.usefixtures("partners")
def test_a_scheme_that_rounds_takes_along_what_was_restored_without(comm, topology, scheme):
    """Of these float16 would have nothing left."""
    here, variable = apart(topology), tf.Variable(tf.zeros([101, 1]))
    old = GradientReducer(HiTopK(0.02), here, bucket_bytes=1 << 20)
    tiny = tf.fill(variable.shape, 2.0**-40)
    [sent] = old.reduce([(tiny, variable)])
    new = GradientReducer(scheme, here, bucket_bytes=1 << 20)
    new.memory.deserialize(moved(comm, old.memory.serialize()))
    [rest] = new.reduce([(tf.zeros_like(variable), variable)])
    np.testing.assert_array_equal(sent + rest, topology.num_workers * tiny)


def test_what_is_dropped_is_said(comm, topology, variables, caplog):
    old = GradientReducer(TopKAllGather(0.05), apart(topology), 100)
    step(old, variables, topology, 0)
    blob = moved(comm, old.memory.serialize())
    for there in (apart(topology), Collectives(Topology((0,), 0))):
        dense = GradientReducer(Dense(), there, 100)
        step(dense, variables, topology, 1)
        caplog.clear()
        dense.memory.deserialize(blob)
        lost = "Dense() keeps no residual of some gradients, and a step was made before" in caplog.text
        assert lost == (topology.num_workers > 1)
        if there.topology.num_workers == 1:
            sums = dense.reduce([(tf.zeros_like(v), v) for v in variables])
            assert not any(g.numpy().any() for g in sums)
            assert not any(state for _, state in dense.memory.buckets)
    longer = GradientReducer(TopKAllGather(0.05), apart(topology), 100)
    longer.memory.deserialize(blob)
    step(longer, [tf.Variable([1.0, 2.0])], topology, 1)
    if topology.num_workers > 1:
        assert "holds no residuals for the gradients of [(2,)]" in caplog.text


@pytest.mark.parametrize("phases", [False, True])
def test_what_is_dropped_without_error_feedback_is_said(comm, topology, variables, caplog, phases):
    old = GradientReducer(TopKAllGather(0.05), apart(topology), 100)
    step(old, variables, topology, 0)
    blob = moved(comm, old.memory.serialize())
    for error_feedback in (True, False):
        scheme = TopKAllGather(0.04, error_feedback)
        new = GradientReducer(Piecewise([(0, scheme)]) if phases else scheme, apart(topology), 100)
        caplog.clear()
        new.memory.deserialize(blob)
        step(new, variables, topology, 1)
        warned = "drops the rest. error_feedback=True loses nothing" in caplog.text
        assert warned == (topology.num_workers > 1 and not error_feedback)


def test_an_older_state_replaces_a_newer_one(comm, topology, variables):
    reducer = GradientReducer(TopKAllGather(0.05), apart(topology), 100)
    blob = moved(comm, reducer.memory.serialize())  # before anything was remembered
    step(reducer, variables, topology, 0)
    reducer.memory.deserialize(blob)
    assert not any(r.any() for r in kept(reducer) if r.ndim)  # what is not is a count


def test_alike_lists_keep_their_order(comm, topology, variables):
    def run(reducer):
        return [step(reducer, vs, topology, seed) for seed, vs in enumerate((variables, others))]

    others = [tf.Variable(v) for v in variables]
    here = apart(topology)
    first = GradientReducer(TopKAllGather(0.05), here, 100)
    run(first)
    blob = moved(comm, first.memory.serialize())
    second = GradientReducer(TopKAllGather(0.05), here, 100)
    second.memory.deserialize(blob)
    np.testing.assert_array_equal(run(first), run(second))


def test_what_no_gradients_have_asked_for_yet_is_saved_again(comm, topology, variables):
    """A second model's residuals outlive a run that trains the first only; and one that saves at once."""
    others = [tf.Variable([0.5] * 9), tf.Variable([[1.0, 2.0]])]
    here = apart(topology)
    first = GradientReducer(TopKAllGather(0.05), here, 100)
    step(first, variables, topology, 0)
    step(first, others, topology, 1)
    blob = moved(comm, first.memory.serialize())
    second = GradientReducer(TopKAllGather(0.05), here, 100)
    second.memory.deserialize(blob)
    second.memory.deserialize(moved(comm, second.memory.serialize()))
    np.testing.assert_array_equal(*(step(r, others, topology, 2) for r in (first, second)))
    third = GradientReducer(TopKAllGather(0.05), here, 100)
    third.memory.deserialize(moved(comm, second.memory.serialize()))
    np.testing.assert_array_equal(*(step(r, variables, topology, 3) for r in (first, third)))


def test_the_file_is_a_numpy_archive(comm, topology, variables, shared_tmp):
    reducer = GradientReducer(TopKAllGather(0.05), apart(topology), 1 << 20)
    step(reducer, variables, topology, 0)
    path = str(shared_tmp / "deeper" / "residual.npz")
    reducer.memory.save(path, variables)
    comm.barrier()
    assert pathlib.Path(path).exists() == (topology.num_workers > 1)  # else there is nothing to be kept
    if topology.num_workers > 1:
        with open(path, "rb") as file:
            archive = np.load(io.BytesIO(file.read()))
        own = archive["0/0/residual"][topology.rank]
        np.testing.assert_array_equal(own, kept(reducer)[0])
        assert archive["0/0/residual"].shape == (topology.num_workers, 12 + 25)  # matrices
    reducer.memory.load(path + ".not there", variables)  # there need not be one


def test_other_variables_leave_what_was_kept_and_say_so(comm, topology, variables, caplog):
    reducer = GradientReducer(TopKAllGather(0.1), comm, bucket_bytes=64)
    step(reducer, variables, topology, 0)
    step(reducer, variables, topology, 1)
    assert "Gradients of other variables" not in caplog.text
    step(reducer, variables[1:], topology, 2)
    matrices = [variable for variable in variables[1:] if variable.shape.rank > 1]
    said = f"has not been sent of {len(matrices)} variables waits" in caplog.text
    assert said == (topology.num_workers > 1 and topology.rank == 0)
