"""Every scheme sums exactly, to the same bits on every worker, and costs what it says."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.communication import Dense, Float16, LinkModel, Torus2D
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.topology import Group

SIZES = [1, 3, 8, 1001]
SCHEMES = [Dense(), Torus2D(), Float16(), Float16(Torus2D())]
FREE = LinkModel(0.0, 0.0, 0.0, 0.0)


@pytest.fixture(params=SCHEMES, ids=repr)
def scheme(request, topology):
    """A scheme that can run here; uneven nodes must be refused by those that cannot."""
    if not topology.is_uniform and "Torus2D" in repr(request.param):
        with pytest.raises(ValueError, match="same number of workers on every node"):
            request.param.validate(topology)
        pytest.skip("refused on uneven nodes, as it should be")
    request.param.validate(topology)
    return request.param


def vector(rank, n):
    """Of eight workers their sum is a float16, too."""
    return (np.arange(n) % 200 + rank).astype(np.float32)


def reduce_all(scheme, comm, vectors, mode):
    def run(*xs):
        return [scheme.reduce(x, State({}), comm) for x in xs]

    return (tf.function(run) if mode == "function" else run)(*map(tf.constant, vectors))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_sums_are_exact(scheme, comm, topology, mode):
    results = reduce_all(scheme, comm, [vector(topology.rank, n) for n in SIZES], mode)
    for n, result in zip(SIZES, results, strict=True):
        expected = sum(vector(rank, n) for rank in range(topology.num_workers))
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtype_is_kept(scheme, comm, topology, dtype):
    bucket = tf.cast([1.0, 2.0, topology.rank], dtype)
    result = scheme.reduce(bucket, State({}), comm)
    p = topology.num_workers
    assert result.dtype == dtype
    np.testing.assert_array_equal(tf.cast(result, tf.float32), [p, 2 * p, p * (p - 1) / 2])


def test_bfloat16_is_rounded_once(comm, topology):
    """Each is half of the last bit of the node's sum, and together they are whole ones."""
    if not topology.is_uniform:
        pytest.skip("Torus2D is refused on uneven nodes")
    mine = tf.cast([1.0 if topology.rank == 0 else 2.0**-8], tf.bfloat16)
    summed = tf.cast(Torus2D().reduce(mine, State({}), comm), tf.float32)
    whole = tf.cast(tf.cast([1 + (topology.num_workers - 1) * 2.0**-8], tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(summed, whole)


def test_all_workers_hold_the_same_bits(scheme, comm, topology):
    """Or weights drift apart: the order in which floats are added must not depend on the worker."""
    rng = np.random.default_rng(topology.rank)
    bucket = (rng.normal(size=1001) * 10.0 ** rng.integers(-8, 8, 1001)).astype(np.float32)
    bits = tf.bitcast(reduce_all(scheme, comm, [bucket], "function")[0], tf.int32)
    for other in comm.all_gather(bits[tf.newaxis]):
        np.testing.assert_array_equal(other, bits)


def test_a_non_finite_gradient_reaches_everyone(scheme, comm, topology):
    bucket = vector(topology.rank, 8)
    if topology.rank == topology.num_workers - 1:
        bucket[3:5] = np.nan, np.inf
    result = scheme.reduce(tf.constant(bucket), State({}), comm).numpy()
    np.testing.assert_array_equal(np.isfinite(result), [i not in (3, 4) for i in range(8)])
    assert np.isnan(result[3]) and result[4] == np.inf


def test_cost_predicts_the_bytes_counted(scheme, comm, topology):
    for n in (*SIZES, 12 * topology.num_workers):
        before = comm.traffic()[1]
        scheme.reduce(tf.constant(vector(topology.rank, n)), State({}), comm)
        after = comm.traffic()[1]
        predicted = scheme.cost(n, topology, FREE).bytes
        assert (after.local - before.local, after.cross - before.cross) == (
            predicted.local,
            predicted.cross,
        )


def test_torus2d_keeps_most_bytes_inside_the_nodes(comm, topology):
    if not topology.is_uniform or 1 in (topology.num_nodes, topology.local_workers):
        pytest.skip("needs several nodes of several workers")
    n = 1000 * topology.num_workers
    sent = {}
    for scheme in (Dense(), Torus2D()):
        before = comm.traffic()[1].cross
        scheme.reduce(tf.zeros([n]), State({}), comm)
        mine = tf.constant(comm.traffic()[1].cross - before)
        sent[type(scheme)] = int(comm.all_reduce(mine, Group.LOCAL))
    m, p = topology.num_nodes, topology.num_workers
    assert sent[Torus2D] == 2 * 4 * n * (m - 1) // m
    assert sent[Dense] == 2 * 4 * n * (p - 1) // p


def test_float16_halves_the_bytes_of_float32(comm, topology):
    for dtype, part in (("float32", 2), ("float64", 1)):
        bucket, sent = tf.zeros([1000 * topology.num_workers], dtype), []
        for scheme in (Dense(), Float16()):
            before = comm.traffic()[1].total
            scheme.reduce(bucket, State({}), comm)
            sent.append(comm.traffic()[1].total - before)
        assert sent[0] == part * sent[1]


def test_float16_keeps_sums_of_large_gradients_finite(comm, topology):
    """Where they are; and small ones by eleven bits."""
    signs = np.array([1, 1, -1], np.float32)
    rng = np.random.default_rng(topology.rank)
    large = Float16().reduce(tf.constant(signs * 10 ** rng.uniform(5, 38, 3).astype("f4")), State({}), comm)
    np.testing.assert_allclose(large, signs * 65504, rtol=0.01)
    small = np.float32(np.arange(1, 1000) / 999)
    summed = Float16().reduce(tf.constant(small), State({}), comm)
    exact = small * topology.num_workers
    np.testing.assert_allclose(summed, exact, rtol=2e-3)
    assert (summed.numpy() != exact).any()  # negative control


def test_these_schemes_remember_nothing(scheme, topology):
    (bucket,) = BucketPlan.build([TensorSpec("w", (3,), "float32", 4)], 100).buckets
    assert scheme.state(bucket, topology) == {}
