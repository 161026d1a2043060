"""Which list of gradients what is remembered belongs to, and how it is forgotten."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import oracle
from tests.multiprocess.sparse_runs import apart, kept, moved, step
from tf_sparse_strategy.communication import (
    Auto,
    Dense,
    Guarded,
    HiTopK,
    LinkModel,
    OkTopK,
    Piecewise,
    TopKAllGather,
)
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.communication.switching import own_name
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.memory import key_of
from tf_sparse_strategy.remembered import is_progress


def progress(reducer):
    """Of all buckets that change: counts of steps, and the largest level of density."""
    states = [state for bucket, state in reducer.memory.buckets if not bucket.is_exact]
    names = {name for state in states for name in filter(is_progress, state)}
    return {name: max(int(state[name]) for state in states) for name in names}


RAISED = Piecewise(
    [(0, Guarded(OkTopK(0.05), limit=1e-9, every=2, action="density")), (9, Dense())], unit="step"
)


@pytest.mark.parametrize("when", ["other buckets", "a layer is frozen", "one that was no longer is"])
def test_what_is_within_another_scheme_goes_on_too(comm, topology, variables, when):
    here = apart(topology)
    old = GradientReducer(RAISED, here, bucket_bytes=100)
    first = variables[:-1] if when.startswith("one that was") else variables
    for seed in range(3):
        step(old, first, topology, seed)
    before = progress(old)
    if topology.num_workers > 1:
        assert before == {"step": 3, "0.step": 3, "0.level": 1}
    new = old
    if when != "a layer is frozen":
        new = GradientReducer(RAISED, here, bucket_bytes=1 << 20)
        new.memory.deserialize(moved(comm, old.memory.serialize()))
    step(new, variables if new is not old else variables[:-1], topology, 3)
    steps = {name: number + 1 for name, number in before.items() if own_name(name) == "step"}
    states = [state for bucket, state in list(new.memory.buckets) if not bucket.is_exact]
    after = {name: int(states[-1][name]) for name in filter(is_progress, states[-1])} if states else {}
    assert after == ({**before, **steps, "0.level": 2} if before else {})


@pytest.mark.parametrize("restored", [False, True])
def test_lists_of_other_variables_begin_anew(comm, topology, variables, restored):
    old = reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)
    for seed in range(3):
        step(old, variables, topology, seed)
    if restored:
        reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)
        reducer.memory.deserialize(moved(comm, old.memory.serialize()))
    begun = [id(state["step"]) for _, state in reducer.memory.buckets if "step" in state]
    step(reducer, [tf.Variable(tf.zeros([6, 2])), tf.Variable(tf.zeros([3, 3]))], topology, 3)
    new = [state for _, state in reducer.memory.buckets if "step" in state and id(state["step"]) not in begun]
    assert {int(state["step"]) for state in new} == ({1} if topology.num_workers > 1 else set())


def test_a_list_that_is_trained_again_has_counted_meanwhile(topology, variables):
    """Layers freeze, and thaw again."""
    reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)
    for seed, some in enumerate([variables, variables, variables[:-1], variables[:-1], variables]):
        step(reducer, some, topology, seed)
    [*states] = [s for b, s in reducer.memory.trained_buckets(variables) if not b.is_exact]
    counted = {int(state[name]) for state in states for name in state if own_name(name) == "step"}
    assert counted == ({5} if topology.num_workers > 1 else set())
    vectors = [v for v in variables if len(v.shape) < 2]  # summed exactly: nothing counts
    for seed, some in enumerate([vectors, variables]):
        step(reducer, some, topology, seed)
    assert {int(state["step"]) for state in states} == ({6} if topology.num_workers > 1 else set())


def test_lists_of_variables_that_are_gone_are_forgotten(comm, topology, variables):
    reducer = GradientReducer(OkTopK(0.05), apart(topology), bucket_bytes=100)
    for seed in range(3):  # a model each
        step(reducer, [tf.Variable(v) for v in variables], topology, seed)
    step(reducer, variables, topology, 3)
    lists = 1 if topology.num_workers > 1 else 0
    assert len(reducer.memory._lists) == lists
    other = GradientReducer(OkTopK(0.05), apart(topology), bucket_bytes=100)
    other.memory.deserialize(moved(comm, reducer.memory.serialize()))
    assert len(other.memory._restored) == lists
    if not lists:
        return
    first = [tf.Variable(v) for v in variables]
    step(other, first, topology, 4)  # takes up what was restored
    del first
    step(other, variables, topology, 5)  # and this is another model
    assert int(other.memory.buckets[0][1]["step" if "step" in other.memory.buckets[0][1] else "age"]) == 1
    assert not other.memory._restored


def test_lists_that_share_a_layer_that_lives_are_forgotten(topology):
    """Several heads, one after the other, on what has been trained before."""
    reducer = GradientReducer(HiTopK(0.05), apart(topology), bucket_bytes=1 << 20)
    base, head = tf.Variable(tf.zeros([20, 10])), None
    for seed in range(3):
        head = tf.Variable(tf.zeros([10, 2]))
        step(reducer, [base, head], topology, seed)
    assert len(reducer.memory._lists) == (topology.num_workers > 1)


def test_slices_alone_are_no_list(comm, topology):
    """It would never be gone, and a worker that traces again alone would ask the others."""
    reducer = GradientReducer(TopKAllGather(0.1), comm, bucket_bytes=100)
    table = tf.Variable(tf.zeros([4, 2]))
    gradient = tf.IndexedSlices(tf.ones([1, 2]), [topology.rank % 4], [4, 2])
    [summed] = reducer.reduce([(gradient, table)])
    assert float(tf.reduce_sum(tf.convert_to_tensor(summed))) == 2 * topology.num_workers
    assert not reducer.memory._lists


def test_lists_that_others_have_replaced_are_not_trained(topology, variables):
    """Frozen, thawed and frozen again, as a new function is traced for each."""
    reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)
    if topology.num_workers == 1:
        return  # which has no buckets
    for seed, trained in enumerate((variables[:-1], variables, variables[:-1])):
        step(reducer, trained, topology, seed)
        buckets = reducer.memory.trained_buckets(trained)
        tensors = [tensor for bucket, _ in buckets for tensor in bucket.tensors]
        assert sorted(t.shape for t in tensors) == sorted(tuple(v.shape) for v in trained)
    assert len(reducer.memory.buckets) > len(buckets)
    two = [[tf.Variable(v) for v in variables] for _ in range(2)]  # of two models
    for each in two:
        step(reducer, each, topology, 3)
    for each in two:
        own = [tensor.key for bucket, _ in reducer.memory.trained_buckets(each) for tensor in bucket.tensors]
        assert sorted(own) == sorted(map(key_of, each))


def test_lists_of_one_step_do_not_replace_each_other(topology, variables):
    """Of two optimizers that train common layers in each step."""
    reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)
    for _ in range(3):
        reducer.begin_step()
        for some in (variables, variables[:-1]):
            reducer.reduce([(tf.ones_like(v), v) for v in some])
    states = [state for bucket, state in reducer.memory.buckets if not bucket.is_exact]
    assert {int(state["step"]) for state in states} == ({3} if topology.num_workers > 1 else set())


def test_a_function_that_is_traced_again_counts_on_by_itself(topology, variables):
    """For other rows, maybe on one worker alone: the others would not see what the other list has counted."""
    reducer = GradientReducer(RAISED, apart(topology), bucket_bytes=100)

    def task(some):
        def step(x):
            reducer.begin_step()
            reducer.reduce([(tf.fill(v.shape, x[0]), v) for v in some])

        return tf.function(step)

    def counts():
        states = [state for bucket, state in reducer.memory.buckets if not bucket.is_exact]
        return {int(state["step"]) for state in states}

    one, two = task(variables), task(variables[:-1])
    for _ in range(3):
        one(tf.ones([4])), two(tf.ones([4]))
    assert counts() == ({3, 4} if topology.num_workers > 1 else set())  # the second began with the first's
    one(tf.ones([3]))
    assert counts() == ({4} if topology.num_workers > 1 else set())


@pytest.mark.parametrize("calls", ["112" * 3 + "LLl", "12L"])
def test_functions_that_one_worker_alone_traces_again_count_as_the_others(
    comm, topology, variables, calls
):
    """For other rows, as L and l, of two lists in turns: what one worker's trace sees the others do not."""
    changing = Piecewise([(0, TopKAllGather(0.5)), (9, Dense())], unit="step")
    reducer = GradientReducer(changing, apart(topology), bucket_bytes=100)

    def task(some):
        def step(x):
            reducer.begin_step()
            reducer.reduce([(tf.fill(v.shape, x[0]), v) for v in some])

        return tf.function(step)

    tasks = {"1": task(variables), "2": task(variables[:-1])}
    tasks["L"], tasks["l"] = tasks["1"], tasks["2"]
    for name in calls:
        is_new = name in "Ll" and topology.rank == topology.num_workers - 1
        tasks[name](tf.ones([3 if is_new else 4]))
    states = [state for bucket, state in reducer.memory.buckets if not bucket.is_exact]
    oracle.assert_identical(comm, np.array([int(state["step"]) for state in states]))


SLOW_BETWEEN_NODES = LinkModel(0.0, 1e-10, 0.0, 1e-4)
ALL = [OkTopK(0.1), RAISED, Guarded(OkTopK(0.05), limit=1e-9, every=2, action="density")]
ALL += [Auto(0.1, links=SLOW_BETWEEN_NODES), Dense()]


@pytest.mark.parametrize("scheme", ALL, ids=repr)
def test_what_is_cleared_is_as_new(comm, topology, variables, scheme):
    """As before another training of the same model, by the functions that are traced already."""
    here = apart(topology)
    scheme = scheme.prepare(here)
    reducer = GradientReducer(scheme, here, bucket_bytes=100)
    first = [step(reducer, variables, topology, seed) for seed in range(4)]
    changed = [r.any() for r in kept(reducer)]
    reducer.memory.clear()
    again = [step(reducer, variables, topology, seed) for seed in range(4)]
    np.testing.assert_array_equal(again, first)
    assert any(changed) == (topology.num_workers > 1 and not isinstance(scheme, Dense))
    reducer.memory.deserialize(moved(comm, reducer.memory.serialize()))
    reducer.memory.clear()
    np.testing.assert_array_equal([step(reducer, variables, topology, seed) for seed in range(4)], first)


def test_without_clearing_another_training_differs(partners, topology, variables):
    """Negative control of the test above."""
    reducer = GradientReducer(OkTopK(0.1), apart(topology), bucket_bytes=100)
    first, again = ([step(reducer, variables, topology, seed) for seed in range(4)] for _ in range(2))
    assert (np.array(first) != np.array(again)).any()


def test_the_choice_of_this_run_s_links_counts(comm, topology, variables):
    """Not that of the run that was saved, on other links: what was chosen has been logged."""
    here = apart(topology)
    slow = Auto(0.1, links=SLOW_BETWEEN_NODES).prepare(here)
    fast = Auto(0.1, links=LinkModel(0.0, 0.0, 0.0, 0.0, selection=1.0)).prepare(here)
    old, new = (GradientReducer(scheme, here, bucket_bytes=100) for scheme in (slow, fast))
    for seed in range(2):
        step(old, variables, topology, seed)
    new.memory.deserialize(moved(comm, old.memory.serialize()))
    step(new, variables, topology, 2)
    chosen = [[int(s[CHOICE]) for _, s in r.memory.buckets if CHOICE in s] for r in (old, new)]
    if topology.num_workers > 1:
        assert set(chosen[1]) == {0} and set(chosen[0]) != {0}
