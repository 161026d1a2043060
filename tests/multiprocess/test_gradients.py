"""Lists of gradients come back summed over the workers, whatever buckets they travelled in."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.sparse_runs import apart
from tests.thorough import thorough_if
from tf_sparse_strategy.communication import (
    DGC,
    Dense,
    GTopK,
    Guarded,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.gradient_kinds import coalesced
from tf_sparse_strategy.gradients import GradientReducer

EXACT = [kind(0.1) for kind in (HiTopK, TopKAllGather, ShardedTopK, GTopK, OkTopK)]
EXACT += [Piecewise([(0, HiTopK(0.1)), (9, Dense())]), Guarded(HiTopK(0.1), limit=1.0, action="density")]
OFTEN = (Dense(), TopKAllGather(0.1), HiTopK(0.1))
SHAPES = [(3, 4), (), (5,), (0, 2), (2, 2)]
DTYPES = ["float32", "float32", "float16", "float32", "float32"]


class Counted(Dense):
    """Dense, and a note of each bucket."""

    def __init__(self):
        object.__setattr__(self, "lengths", [])
        object.__setattr__(self, "states", [])

    def state(self, bucket, topology):
        self.states.append(bucket)
        return {"calls": tf.Variable(0, trainable=False)}

    def reduce(self, bucket, state, collectives):
        self.lengths.append(int(bucket.shape[0]))
        state["calls"].assign_add(1)
        return super().reduce(bucket, state, collectives)


@pytest.fixture(scope="module")
def variables():
    return [
        tf.Variable(tf.zeros(shape, dtype), name=f"v{i}")
        for i, (shape, dtype) in enumerate(zip(SHAPES, DTYPES, strict=True))
    ]


def gradient(rank, position):
    shape = SHAPES[position]
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return tf.constant(values + 10 * position + rank, DTYPES[position])


def sums(topology):
    return [
        sum(gradient(rank, position).numpy() for rank in range(topology.num_workers))
        for position in range(len(SHAPES))
    ]


def pairs_of(topology, variables):
    return [(gradient(topology.rank, i), variable) for i, variable in enumerate(variables)]


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("bucket_bytes", [1, 20, 1 << 20])
def test_buckets_of_any_size_give_the_same_sums(comm, topology, variables, bucket_bytes, mode):
    reducer = GradientReducer(Dense(), comm, bucket_bytes)

    def run(gradients):
        return reducer.reduce(list(zip(gradients, variables, strict=True)))

    gradients = [gradient for gradient, _ in pairs_of(topology, variables)]
    results = (tf.function(run) if mode == "function" else run)(gradients)
    for result, expected, variable in zip(results, sums(topology), variables, strict=True):
        assert result.shape == variable.shape and result.dtype == variable.dtype
        np.testing.assert_array_equal(result, expected)


def test_buckets_hold_what_fits_last_variable_first(comm, topology, variables):
    scheme = Counted()
    GradientReducer(scheme, comm, bucket_bytes=24).reduce(pairs_of(topology, variables))
    # (2, 2), (0, 2) and the scalar in float32; (5,) in float16; (3, 4) alone is beyond the limit.
    expected = [5, 5, 12] if topology.num_workers > 1 else []
    assert scheme.lengths == expected


def test_state_is_made_once_per_bucket(comm, topology, variables):
    scheme = Counted()
    reducer = GradientReducer(scheme, comm, bucket_bytes=24)
    step = tf.function(lambda: reducer.reduce(pairs_of(topology, variables)))
    for _ in range(3):
        step()
    tf.function(lambda: reducer.reduce(pairs_of(topology, variables)))()  # another trace
    buckets = 3 if topology.num_workers > 1 else 0
    assert len(scheme.states) == len(set(scheme.states)) == buckets
    assert [int(state["calls"]) for _, state in reducer.memory.buckets] == [4] * buckets


def test_lists_of_other_variables_have_states_of_their_own(comm, topology, variables):
    """Two optimizers, as in a GAN: alike in all shapes, and still not each other's residual."""
    others = [tf.Variable(variable) for variable in variables]
    scheme = Counted()
    reducer = GradientReducer(scheme, comm, bucket_bytes=1 << 20)
    for pairs in (pairs_of(topology, variables), pairs_of(topology, others)) * 2:
        reducer.reduce(pairs)
    calls = [int(state["calls"]) for _, state in reducer.memory.buckets]
    assert calls == ([2] * 4 if topology.num_workers > 1 else [])


def residuals(reducer):
    return [v.numpy() for _, state in reducer.memory.buckets for v in state.values()]


@pytest.mark.parametrize("scheme", [TopKAllGather(0.3), HiTopK(0.3), OkTopK(0.3)], ids=repr)
@pytest.mark.parametrize("bad", ["another bucket", "an exact bucket", "slices"])
def test_one_bad_gradient_leaves_all_residuals_alone(comm, topology, variables, bad, scheme):
    """A step is skipped as a whole: what good buckets sent would be lost with it."""
    reducer = GradientReducer(scheme, comm, bucket_bytes=24)
    several = scheme.share(topology).holders > 1
    table = tf.Variable(tf.zeros([6, 2]))
    exact = tf.Variable(tf.zeros([3, 1], tf.float64))
    pairs = [*pairs_of(topology, variables), (tf.ones_like(exact), exact)]
    good = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([6, 2]))
    reducer.reduce([*pairs, (good, table)])
    before = residuals(reducer)
    assert several == any(r.any() for r in before)
    last = topology.rank == topology.num_workers - 1
    if bad == "slices" and last:
        good = tf.IndexedSlices(tf.fill([1, 2], np.nan), tf.constant([0]), tf.constant([6, 2]))
    elif bad == "an exact bucket" and last:
        pairs[-1] = (tf.fill([3, 1], tf.constant(np.nan, tf.float64)), exact)
    elif last:
        pairs[0] = (pairs[0][0] * np.inf, pairs[0][1])
    reducer.reduce([*pairs, (good, table)])
    for old, new in zip(before, residuals(reducer), strict=True):
        np.testing.assert_array_equal(old, new)
    good = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([6, 2]))
    reducer.reduce([*pairs_of(topology, variables), (tf.ones_like(exact), exact), (good, table)])
    if several:
        assert any((old != new).any() for old, new in zip(before, residuals(reducer), strict=True))


def test_repeated_rows_travel_once(comm, topology):
    reducer = GradientReducer(Dense(), comm, 1 << 20)
    rows = tf.constant([3, 1, 3, 3, 1])
    values = tf.reshape(tf.range(10.0), [5, 2])
    before = comm.traffic()[1].total
    got = reducer.reduce_sparse(coalesced(tf.IndexedSlices(values, rows, tf.constant([4, 2]))))
    p = topology.num_workers
    assert got.indices.numpy().tolist() == [3, 1] * p
    np.testing.assert_array_equal(got.values, [[0 + 4 + 6, 1 + 5 + 7], [2 + 8, 3 + 9]] * p)
    assert comm.traffic()[1].total - before == (p - 1) * 2 * (2 * 4 + 4)


def test_one_worker_gets_its_own_gradients_back(comm, topology, variables):
    pairs = pairs_of(topology, variables)
    results = GradientReducer(Dense(), comm, 1 << 20).reduce(pairs)
    untouched = [result is pair[0] for result, pair in zip(results, pairs, strict=True)]
    assert all(untouched) if topology.num_workers == 1 else not any(untouched)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("scheme", thorough_if(lambda s: s not in OFTEN, [Dense(), *EXACT]), ids=repr)
def test_dense_and_sparse_mixed(comm, topology, variables, scheme, mode):
    """Indices that workers share, that one repeats, and workers that contribute no row at all.

    Rows lose nothing, whatever is dropped of dense gradients: of 16 elements, 2 are sent.
    """
    table = tf.Variable(tf.zeros([9, 2]))
    reducer = GradientReducer(scheme, comm, 1 << 20)

    def slices(rank):
        rows = [0, rank + 1, rank + 1][: 3 * (rank != 1)]  # rank 1 has none
        values = tf.reshape(tf.range(2.0 * len(rows)), [-1, 2]) + 100.0 * rank
        return tf.IndexedSlices(values, tf.constant(rows, tf.int64), tf.constant([9, 2]))

    def run():
        sparse = (slices(topology.rank), table)
        first, last = (gradient(topology.rank, 0), variables[0]), pairs_of(topology, variables)[4]
        return reducer.reduce([first, sparse, last])

    first, sparse, last = (tf.function(run) if mode == "function" else run)()
    drops = scheme.keeps_residual and scheme.share(topology).holders > 1
    for found, whole in ((first, sums(topology)[0]), (last, sums(topology)[4])):
        assert np.array_equal(found, whole) != drops
    assert isinstance(sparse, tf.IndexedSlices)
    expected = sum(
        tf.convert_to_tensor(slices(rank)).numpy() for rank in range(topology.num_workers)
    )
    np.testing.assert_array_equal(tf.convert_to_tensor(sparse), expected)


@pytest.mark.parametrize("scheme", [*EXACT, DGC(0.1), HiTopK(1.0), Dense()], ids=repr)
def test_small_vectors_lose_nothing(topology, scheme):
    """Beside a matrix and a large vector that do; but under DGC, whose momentum they would miss."""
    here = apart(topology)
    shapes = [(5, 8), (7,), (), (1 << 14,), ((1 << 14) + 1,)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    ramps = [1 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    mine = [tf.constant((topology.rank + 1) * ramp) for ramp in ramps]
    reducer = GradientReducer(scheme, here, bucket_bytes=1 << 20)
    found = reducer.reduce(list(zip(mine, variables, strict=True)))
    whole = topology.num_workers * (topology.num_workers + 1) / 2
    lost = [not np.array_equal(gradient, whole * ramp) for gradient, ramp in zip(found, ramps, strict=True)]
    drops = topology.num_workers > 1 and scheme not in (HiTopK(1.0), Dense())
    assert lost[0] == lost[4] == drops
    assert lost[1:4] == [drops and scheme == DGC(0.1)] * 3


def test_no_gradients(comm):
    assert GradientReducer(Dense(), comm, 1 << 20).reduce([]) == []


def test_unknown_shapes_are_the_variables_or_named(comm, topology, variables):
    if topology.num_workers == 1:
        pytest.skip("one worker returns gradients untouched")
    reducer = GradientReducer(Dense(), comm, 1 << 20)

    def step(x, variable):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def reduce(x):
            return reducer.reduce([(x, variable)])

        return reduce(x)

    ones = tf.ones(variables[2].shape)
    np.testing.assert_array_equal(step(ones, variables[2])[0], topology.num_workers * ones)
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(ones[:-1], variables[2])
    shapeless = tf.Variable(ones, shape=[None], name="shapeless")
    with pytest.raises(ValueError, match=r"variable 'shapeless.*unknown shape.*shape="):
        step(ones, shapeless)


ROWS = {
    "constant": lambda data, held: tf.constant([2, 0, 2]),
    "computed": lambda data, held: tf.reshape(tf.range(3)[:, tf.newaxis] % 2, [-1]),
    "held": lambda data, held: held.read_value(),
    "captured": lambda data, held: CAPTURED,
    "in a branch": lambda data, held: None,
    "each sample's": lambda data, held: tf.zeros([3], tf.int32),
    "data": lambda data, held: data,
    "random": lambda data, held: tf.random.uniform([3], maxval=1, dtype=tf.int32),
}
CAPTURED = tf.constant([1, 2, 1])


@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_the_program_come_once(comm, topology, rows):
    """Positions that a model looks up; of data each occurrence counts, as in one process."""
    table, held = tf.Variable(tf.zeros([4, 2])), tf.Variable([3, 0, 1], trainable=False)
    reducer = GradientReducer(Dense(), comm, 1 << 20)

    def reduce(indices):
        values = tf.ones([3, 2]) * (topology.rank + tf.constant([[0.0], [10.0], [100.0]]))
        found = reducer.reduce([(tf.IndexedSlices(values, indices, tf.constant([4, 2])), table)])[0]
        return found.values, found.indices

    @tf.function
    def step(data):
        if rows == "in a branch":
            outside = tf.constant([0, 3, 0])
            return tf.cond(tf.size(data) > 0, lambda: reduce(outside + 0), lambda: reduce(outside))
        return reduce(ROWS[rows](data, held))

    values, indices = step(tf.constant([0, 1, 1]))
    p = topology.num_workers
    once = rows not in ("each sample's", "data", "random")
    assert len(indices) == (3 if once or p == 1 else 3 * p)
    total = tf.reduce_sum(tf.reshape(values, [-1, 3, 2]), axis=0)
    expected = p * np.array([0.0, 10.0, 100.0]) + p * (p - 1) / 2
    np.testing.assert_array_equal(total, np.stack([expected] * 2, axis=1))
