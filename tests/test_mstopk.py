"""`custom_ops.mstopk` against a full sort, through TensorFlow."""

import doctest
import subprocess
import sys

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.mstopk_reference import (
    ADVERSARIAL,
    DTYPES,
    adversarial,
    by_magnitude,
    keys,
    long_case,
    top_k,
)
from tests.thorough import thorough_if

CASES = 10_000
SHARDS = thorough_if(lambda shard: shard >= 8, range(20))


def check(x: np.ndarray, k: int, sorted: bool = False, **options) -> None:
    """Same indices as the full sort, and the values that lie there."""
    result = custom_ops.mstopk(x, k, sorted=sorted, **options)
    expected = by_magnitude(x, k) if sorted else top_k(x, k)
    np.testing.assert_array_equal(result.indices.numpy(), expected)
    bits = {2: np.uint16, 4: np.uint32}[x.dtype.itemsize]
    values = np.take_along_axis(x, expected, axis=-1)
    np.testing.assert_array_equal(result.values.numpy().view(bits), values.view(bits))


@pytest.mark.parametrize("shard", SHARDS)
def test_seeded_cases(shard: int) -> None:
    rng = np.random.default_rng(shard)
    for case in range(CASES // len(SHARDS)):
        n = int(rng.integers(1, rng.choice([4, 100, 3000])))
        name = ADVERSARIAL[case % len(ADVERSARIAL)]
        x = adversarial(name, n, rng).astype(DTYPES[case % len(DTYPES)])
        k = int(rng.integers(0, n + 1))
        try:
            check(x, k)
        except AssertionError as error:
            raise AssertionError(f"shard {shard}, case {case}: {name}, n={n}, k={k}") from error


@pytest.mark.parametrize("shard", SHARDS)
def test_seeded_cases_of_which_a_sample_is_taken(shard: int) -> None:
    rng = np.random.default_rng(shard)
    for name in ADVERSARIAL:
        x, k = long_case(name, rng)
        try:
            check(x.astype(rng.choice(DTYPES)), k)
        except AssertionError as error:
            raise AssertionError(f"shard {shard}: {name}, n={x.size}, k={k}") from error


def test_the_check_can_fail() -> None:
    x = np.float32([1, 2, 3, 3])
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(custom_ops.mstopk(x, 1).indices, top_k(x[::-1].copy(), 1))
    assert top_k(x, 1).tolist() == [2]


@hypothesis.settings(max_examples=300)
@hypothesis.given(data=st.data())
def test_any_floats(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float32, st.integers(1, 200)))
    check(x, data.draw(st.integers(0, x.size)))


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_vectors(name: str, dtype: type) -> None:
    n = 300_001  # two blocks, sampled
    x = adversarial(name, n, np.random.default_rng(0)).astype(dtype)
    for k in (n // 1000, n // 100):
        check(x, k)


@pytest.mark.parametrize("kept", [False, True])
def test_indices_that_float32_cannot_count(kept: bool) -> None:
    """The largest lie behind 2^24, each beside its neighbours."""
    n, x = 2**24 + 3, np.zeros(2**24 + 3, np.float32)
    where = np.arange(n - 5, n)
    x[where] = [5, -4, 3, 2, -1]
    if kept:
        values, indices, residual, _ = custom_ops.mstopk_error_feedback(x, np.zeros_like(x), 4)
        np.testing.assert_array_equal(residual[n - 8 :], [0, 0, 0, 0, 0, 0, 0, -1])
    else:
        values, indices = custom_ops.mstopk(x, 4)
    np.testing.assert_array_equal(indices, where[:4])
    np.testing.assert_array_equal(values, x[where[:4]])


@pytest.mark.parametrize("index_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("k_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype: type, index_type: tf.DType, k_type: tf.DType) -> None:
    x = adversarial("normal", 50, np.random.default_rng(1)).astype(dtype)
    result = custom_ops.mstopk(x, tf.constant(5, k_type), index_type=index_type)
    assert result.indices.dtype == index_type
    assert result.values.dtype == dtype
    np.testing.assert_array_equal(result.indices, top_k(x, 5))


@pytest.mark.parametrize("sorted", [False, True])
@pytest.mark.parametrize("index_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 30), (2, 3, 30), (0, 30), (3, 0), (2, 270_000)])
def test_batch_dimensions(
    shape: tuple[int, ...], dtype: type, index_type: tf.DType, sorted: bool
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    check(x, shape[-1] // 10, sorted, index_type=index_type)


def test_limits_of_k() -> None:
    x = np.float32([3, -1, 2])
    check(x, 0)
    check(x, 3)
    check(np.float32([]), 0)


def test_sorted_by_magnitude() -> None:
    result = custom_ops.mstopk(np.float32([1, -3, 0, 3, 2]), 4, sorted=True)
    assert result.indices.numpy().tolist() == [1, 3, 4, 0]
    assert result.values.numpy().tolist() == [-3, 3, 2, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_sorted_of_any_kind(name: str, dtype: type) -> None:
    rng = np.random.default_rng(7)
    for n in (1, 1000, 40_001):
        check(adversarial(name, n, rng).astype(dtype), (n + 1) // 2, sorted=True)


def test_nans_rank_by_their_bits() -> None:
    x = np.uint32([0x7FC00000, 0x7F800000, 0xFFC00001, 0x7FC00001, 0x7FC00001]).view(np.float32)
    for k in range(x.size + 1):
        check(x, k)
    assert custom_ops.mstopk(x, 2, sorted=True).indices.numpy().tolist() == [2, 3]
    grad = np.where(np.arange(x.size) == 1, np.float32(0), x)
    assert custom_ops.mstopk_error_feedback(grad, np.zeros_like(grad), 1).indices.numpy().tolist() == [2]


@pytest.mark.parametrize("options", [{"sorted": True}, {"num_samplings": 30}])
def test_what_gpus_cannot_do_is_placed_on_the_cpu(options: dict) -> None:
    def devices(**options) -> list[str]:
        with tf.Graph().as_default() as graph, tf.device("GPU:0"):
            custom_ops.mstopk(tf.compat.v1.placeholder(tf.float32, [9]), 2, **options)
            return [op.device for op in graph.get_operations() if op.type == "Mstopk"]

    assert devices(**options) == ["/device:CPU:0"]
    assert devices() == ["/device:GPU:0"]


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_paper_search_returns_k_distinct_indices(name: str) -> None:
    x = adversarial(name, 5000, np.random.default_rng(3))
    for num_samplings in (0, 3, 30):
        indices = custom_ops.mstopk(x, 50, num_samplings=num_samplings).indices.numpy()
        assert len(set(indices.tolist())) == 50
        assert indices.min() >= 0 and indices.max() < 5000


def test_more_samplings_come_closer_to_the_exact_choice() -> None:
    x = adversarial("normal", 200_000, np.random.default_rng(4))
    exact = set(top_k(x, 200).tolist())

    def recall(num_samplings: int) -> float:
        chosen = custom_ops.mstopk(x, 200, num_samplings=num_samplings).indices.numpy()
        return len(exact & set(chosen.tolist())) / 200

    assert recall(2) < recall(5) < recall(10) <= recall(30) == 1.0


def test_same_in_a_graph_and_not_stateful() -> None:
    x = adversarial("few_values", 1000, np.random.default_rng(5))
    function = tf.function(lambda x, k: custom_ops.mstopk(x, k), reduce_retracing=True)
    np.testing.assert_array_equal(function(x, 10).indices, custom_ops.mstopk(x, 10).indices)
    operations = function.get_concrete_function(x, 10).graph.get_operations()
    (mstopk_op,) = [op for op in operations if op.type == "Mstopk"]
    assert not mstopk_op.op_def.is_stateful


SCALAR, ANY_SHAPE = [], None  # of a `k` whose value is not known
SHAPES = [
    ([10], 3, [3]),
    ([10], 10, [10]),
    ([10], np.int64(3), [3]),
    ([10], SCALAR, [None]),
    ([10], ANY_SHAPE, [None]),
    ([None], 3, [3]),
    ([2, 10], 3, [2, 3]),
    ([None, 4, None], 3, [None, 4, 3]),
    (None, 3, None),
    ([10], 0, [0]),
]


@pytest.mark.parametrize(("shape", "k", "expected"), SHAPES)
def test_shape_function(shape: list | None, k: object, expected: list | None) -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, shape)
        k = tf.compat.v1.placeholder(tf.int32, k) if k is SCALAR or k is ANY_SHAPE else k
        for output in custom_ops.mstopk(x, k):
            assert output.shape.as_list() == expected if expected else output.shape.rank is None


@pytest.mark.parametrize(
    ("shape", "k", "message"),
    [
        ([], 1, "Shape must be at least rank 1 but is rank 0"),
        ([10], 11, "input must have last dimension >= k = 11 but is 10"),
        ([10], -1, "must be non-negative but is -1"),
        ([10], [1, 2], "Input must be scalar but has rank 1"),
    ],
)
def test_shape_errors_read_as_those_of_top_k(shape: list, k: object, message: str) -> None:
    for operation in (custom_ops.mstopk, tf.math.top_k):
        with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
            operation(tf.compat.v1.placeholder(tf.float32, shape), k)


def test_vector_as_k_of_an_input_of_any_shape() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="must be scalar but has rank 1"):
        custom_ops.mstopk(tf.compat.v1.placeholder(tf.float32, None), [1, 2])


@pytest.mark.parametrize(
    ("x", "k", "message"),
    [
        (np.float32(1), 1, r"input must be >= 1-D, got shape \[\]"),
        (np.float32([1, 2]), 3, "input must have at least k columns. Had 2, needed 3"),
        (np.float32([1, 2]), -1, "Need k >= 0, got -1"),
        (np.float32([1, 2]), [1, 1], r"k must be scalar, got shape \[2\]"),
    ],
)
def test_errors_read_as_those_of_top_k(x: np.ndarray, k: object, message: str) -> None:
    for operation in (custom_ops.mstopk, tf.math.top_k):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            operation(x, k)


def test_rows_that_int32_cannot_address() -> None:
    """Without rows, so without memory for them."""
    longest = np.zeros((0, 2**31), np.float32)
    assert custom_ops.mstopk(longest, 1).indices.shape == (0, 1)
    longer = np.zeros((0, 2**31 + 1), np.float32)
    assert custom_ops.mstopk(longer, 1, index_type=tf.int64).indices.shape == (0, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="use index_type=tf.int64"):
        custom_ops.mstopk(longer, 1)


# Half of 256 MB is chosen: outputs of 256 MB (512 with error feedback), and some 300 to choose among.
REFUSED = """
import os, resource
import tensorflow as tf
import custom_ops

x, k = tf.zeros([1 << 26]), 1 << 25
residual = tf.zeros_like(x)
custom_ops.mstopk(x[: 1 << 20], 1)  # starts the threads

def attempt(megabytes, select, *arguments):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        select(*arguments, k)
        print("selected")
    except tf.errors.ResourceExhaustedError as error:
        print(error)

attempt(400, custom_ops.mstopk, x)
attempt(650, custom_ops.mstopk_error_feedback, x, residual)
attempt(4_000, custom_ops.mstopk, x)
"""


def test_memory_that_is_refused_fails_the_operation_alone() -> None:
    """In a process of its own, whose memory ends where the outputs have been made."""
    command = [sys.executable, "-c", REFUSED]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert child.stdout.count("no memory was left to select entries") == 2, child
    assert child.stdout.endswith("selected\n"), child


def test_negative_num_samplings() -> None:
    with pytest.raises(ValueError, match="num_samplings is -1; it must be >= 0, or None"):
        custom_ops.mstopk(np.float32([1]), 1, num_samplings=-1)


@pytest.mark.parametrize("shape", [(30,), (3, 20), (2, 2, 20)])
def test_gradient_is_the_numeric_one(shape: tuple[int, ...]) -> None:
    # Magnitudes differ by more than the step of the numeric differences: no change of the choice.
    rng = np.random.default_rng(6)
    x = rng.permuted(np.broadcast_to(np.arange(1, shape[-1] + 1), shape), axis=-1) * 0.1
    x = np.float32(x * rng.choice([-1, 1], shape))
    theory, numeric = tf.test.compute_gradient(
        lambda x: custom_ops.mstopk(x, 5).values ** 2, [tf.constant(x)], delta=1e-2
    )
    np.testing.assert_allclose(theory[0], numeric[0], atol=2e-2)
    assert np.count_nonzero(theory[0]) == x.size // shape[-1] * 5


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 3), (2, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_any_type_and_size(dtype: type, shape: tuple[int, ...], k: int) -> None:
    k = min(k, shape[-1])
    x = tf.constant(np.resize([1, -3, 2, 5, 4, -6], shape), dtype)
    function = tf.function(
        lambda x: tf.gradients(custom_ops.mstopk(x, k).values * 2, x)[0],
        input_signature=[tf.TensorSpec(None, dtype)],
    )
    chosen = np.zeros(shape)
    np.put_along_axis(chosen, top_k(x.numpy(), k), 2, axis=-1)
    gradient = function(x)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient.numpy().astype(np.float32), chosen)


def test_gradient_counts_in_64_bits() -> None:
    """Rows times N may pass 2^31 though each row's indices fit int32: too much to be tried here."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None])
        tf.gradients(custom_ops.mstopk(x, 2).values, x)
        operations = graph.get_operations()
    [scatter] = [op for op in operations if op.type == "ScatterNd"]
    assert scatter.inputs[0].dtype == scatter.inputs[2].dtype == tf.int64
    [places] = [op for op in operations if op.type == "Range"]
    assert places.outputs[0].dtype == tf.int64
    products = [op.outputs[0] for op in operations if op.type == "Mul"]
    assert {product.dtype for product in products if product.dtype.is_integer} == {tf.int64}


def test_examples_in_the_documentation() -> None:
    from custom_ops.mstopk import mstopk as module

    failed, attempted = doctest.testmod(module)
    assert attempted >= 4 and failed == 0


def test_keys_order_like_magnitudes() -> None:
    x = np.float32([0, -0.0, 1e-45, 1, -2, np.inf, np.nan])
    assert keys(x)[0] == keys(x)[1]
    assert (np.diff(keys(x)[1:]) > 0).all()
