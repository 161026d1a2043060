"""`parallel_tensor_op` and the divided norms under MirroredStrategy: P replicas in one process."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import lars_pto
from lars_pto import norms, parallel

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
WORKERS = [1, 2, 3, 4, 8]


def everywhere(workers: int, fn, in_graph: bool = True) -> list:
    """What `fn()` returns on each of P replicas."""
    if in_graph:
        fn = tf.function(fn)
    # TensorFlow's collective operations are numbered per strategy: a second strategy in one process
    # would meet the first one's numbers with other shapes. Copies to one device have no numbers.
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(workers)], tf.distribute.ReductionToOneDevice()
    )
    assert strategy.num_replicas_in_sync == workers
    results = strategy.run(fn)
    flat = [strategy.experimental_local_results(r) for r in tf.nest.flatten(results)]
    return [[np.array(part) for part in replica] for replica in zip(*flat, strict=True)] or [[]]


def integer_tensors(shapes) -> list[np.ndarray]:
    """Integers, so that sums are exact in any order."""
    rng = np.random.default_rng(0)
    return [rng.integers(-8, 9, size=shape).astype(np.float32) for shape in shapes]


SHAPES = {
    "many": [(3, 4), (7,), (), (2, 2, 2), (100,), (0,), (1,), (5, 5), (64,), (9,)],
    "fewer than workers": [(3, 4)],
    "one huge": [(3,), (3 * parallel.UNIT + 11,), (2,)],
    "all empty": [(0,), (0, 3)],
}


@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("workers", WORKERS)
def test_results_are_those_of_one_worker(workers, shapes, separable):
    tensors = integer_tensors(shapes)

    def fn(x):
        return tf.stack([tf.reduce_sum(x), tf.reduce_sum(x * x)])

    for results in everywhere(
        workers, lambda: lars_pto.parallel_tensor_op(fn, tensors, separable=separable)
    ):
        for got, x in zip(results, tensors, strict=True):
            np.testing.assert_array_equal(got, [x.sum(), (x * x).sum()])


@pytest.mark.parametrize("workers", [1, 3])
def test_results_of_many_shapes_and_eager_calls(workers):
    tensors = integer_tensors([(2, 3), (4, 1), (5, 5)])
    for results in everywhere(
        workers, lambda: lars_pto.parallel_tensor_op(tf.transpose, tensors), in_graph=False
    ):
        for got, x in zip(results, tensors, strict=True):
            np.testing.assert_array_equal(got, x.T)


def test_each_tensor_is_computed_by_one_replica():
    """A function that tells calls apart: the replicas agree only because one of them computed it."""
    calls = []

    def fn(x):
        calls.append(x)
        return tf.random.uniform([2]) + tf.reduce_sum(x) * 0

    tensors = integer_tensors([(3,), (5,), (7,), (9,)])
    replicas = everywhere(2, lambda: lars_pto.parallel_tensor_op(fn, tensors))
    for a, b in zip(*replicas, strict=True):
        np.testing.assert_array_equal(a, b)
    traced_for_shapes_by_both, computed = 2 * len(tensors), len(tensors)
    assert len(calls) == traced_for_shapes_by_both + computed

    def alone():
        return [fn(tf.constant(x)) for x in tensors]

    first, second = everywhere(2, alone)
    assert not np.array_equal(first[0], second[0])


def test_no_tensors():
    assert everywhere(3, lambda: lars_pto.parallel_tensor_op(tf.reduce_sum, [])) == [[]]


def test_a_nan_reaches_all_replicas():
    tensors = [np.float32([1, np.nan]), np.float32([1, 2, 3])]
    for first, second in everywhere(
        2, lambda: lars_pto.parallel_tensor_op(tf.reduce_sum, tensors)
    ):
        assert np.isnan(first) and second == 6


def test_costs_decide_who_computes():
    """Costs put tensor 0 alone on one replica, and the other two on the other."""
    tensors = integer_tensors([(1,), (50,), (50,)])

    def who(x):
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)

    [first, _] = everywhere(
        2, lambda: lars_pto.parallel_tensor_op(who, tensors, costs=[10.0, 1.0, 1.0])
    )
    assert [int(r) for r in first] == [0, 1, 1]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: lars_pto.parallel_tensor_op(tf.reduce_sum, [[1.0]], costs=[]), "0 costs for 1"),
        (lambda: lars_pto.parallel_tensor_op(tf.where, [[1.0]]), "static shape"),
        (
            lambda: lars_pto.parallel_tensor_op(
                lambda x: tf.cast(x, tf.int32) if x.shape[0] == 1 else x, [[1.0], [1.0, 2.0]]
            ),
            "one dtype",
        ),
    ],
)
def test_errors_name_the_argument(call, word):
    with pytest.raises(ValueError, match=word):
        everywhere(2, call)


def test_outside_of_a_replica():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), pytest.raises(RuntimeError, match=r"inside strategy\.run"):
        lars_pto.parallel_tensor_op(tf.reduce_sum, [[1.0]])


def test_dynamic_shapes_are_refused():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        return lars_pto.parallel_tensor_op(tf.reduce_sum, [x])

    with pytest.raises(ValueError, match="ensure_shape"):
        run(tf.ones([3]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", WORKERS)
def test_divided_norms(workers, dtype):
    """Uncut layers: the same bits as alone. Cut ones: float64 sums in another order."""
    rng = np.random.default_rng(1)
    shapes = [(3, 4), (2 * parallel.UNIT + 5,), (1,), (0,), (50, 50), (parallel.UNIT * 4,)]
    weights, directions = ([rng.normal(size=s).astype(dtype) for s in shapes] for _ in range(2))
    decays = [0.0, 0.1, 0.0, 0.2, 0.3, 0.0]
    alone = norms.sums_of_squares(weights, directions, decays).numpy()
    constants = lambda arrays: [tf.constant(a) for a in arrays]  # noqa: E731
    replicas = everywhere(
        workers,
        lambda: norms.divided_sums(constants(weights), constants(directions), decays),
    )
    for [got] in replicas:
        np.testing.assert_array_equal(got, replicas[0][0])
        np.testing.assert_allclose(got, alone, rtol=1e-13)
        np.testing.assert_array_equal(got[[0, 2, 3, 4]], alone[[0, 2, 3, 4]])


def test_plain_sums_agree_with_the_fused_ones():
    """What runs on GPUs; mixed dtypes keep their order."""
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=s) for s in [(30, 30), (7,), (1000,)]]
    weights = [w.astype(d) for w, d in zip(weights, ["float32", "float64", "float32"], strict=True)]
    directions = [w[::-1].copy() for w in weights]
    decays = [0.0, 0.5, 0.1]
    fused = norms.sums_of_squares(weights, directions, decays)
    np.testing.assert_allclose(norms.plain_sums(weights, directions, decays), fused, rtol=1e-6)


@pytest.mark.parametrize("first", ["float64", "float32"])
def test_norms_of_mixed_dtypes_keep_their_order(first):
    other = "float32" if first == "float64" else "float64"
    weights = [np.ones(n, d) for n, d in zip([2, 3, 4, 5], [first, other, other, first], strict=True)]
    np.testing.assert_array_equal(norms.sums_of_squares(weights, weights, [0.0] * 4)[:, 0], [2, 3, 4, 5])


def test_docs():
    assert doctest.testmod(parallel) == (0, 3)
