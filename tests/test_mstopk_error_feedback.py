"""`custom_ops.mstopk_error_feedback`: nothing is lost, and no NaN gets into the residual."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.mstopk_reference import ADVERSARIAL, DTYPES, adversarial, long_case, top_k


def check(grad: np.ndarray, residual: np.ndarray, k: int, **options) -> None:
    """The definition, bit for bit."""
    with np.errstate(all="ignore"):
        acc = residual + grad.astype(np.float32)
    result = custom_ops.mstopk_error_feedback(grad, residual, k, **options)
    indices = result.indices.numpy()
    np.testing.assert_array_equal(indices, top_k(acc, k))
    finite = bool(np.isfinite(grad.astype(np.float32)).all())
    assert bool(result.all_finite) == finite
    values, kept = result.values.numpy(), result.new_residual.numpy()
    np.testing.assert_array_equal(values, acc[indices])
    if not finite:
        assert kept.tobytes() == residual.tobytes()
        return
    assert not kept[indices].any()
    kept[indices] = values
    np.testing.assert_array_equal(kept.view(np.uint32), acc.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_definition(name: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 64, 1000, 40_001):  # the last is sampled
        grad = adversarial(name, n, rng).astype(dtype)
        residual = rng.standard_normal(n).astype(np.float32) * np.float32(0.1)
        for k in (0, (n + 99) // 100, n):
            check(grad, residual, k)


@pytest.mark.parametrize("index_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("k_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype: type, index_type: tf.DType, k_type: tf.DType) -> None:
    grad = adversarial("normal", 40_001, np.random.default_rng(4)).astype(dtype)
    residual = adversarial("few_values", grad.size, np.random.default_rng(5))
    check(grad, residual, tf.constant(300, k_type), index_type=index_type)
    assert custom_ops.mstopk_error_feedback(grad, residual, 3, index_type).indices.dtype == index_type


def test_k_and_lengths_that_a_function_learns_when_it_runs() -> None:
    step = tf.function(
        custom_ops.mstopk_error_feedback,
        input_signature=[tf.TensorSpec(None), tf.TensorSpec([None]), tf.TensorSpec([], tf.int64)],
    )
    rng = np.random.default_rng(6)
    for n, k in ((5, 0), (20_000, 7), (300_000, 3000), (0, 0)):
        grad, residual = rng.standard_normal((2, n)).astype(np.float32)
        got = step(grad, residual, tf.constant(k, tf.int64))
        want = custom_ops.mstopk_error_feedback(grad, residual, k)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_finite_numbers_whose_sum_is_not() -> None:
    huge = np.float32([3e38, 1, 3e38, -3e38])
    values, indices, kept, all_finite = custom_ops.mstopk_error_feedback(huge, huge, 2)
    assert all_finite and indices.numpy().tolist() == [0, 2] and np.isinf(values).all()
    assert kept.numpy().tolist() == [0, 2, 0, -np.inf]


@pytest.mark.parametrize("kept", ["nothing", "what cancels", "noise"])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_seeded_cases_of_which_a_sample_is_taken(name: str, kept: str) -> None:
    """With nothing kept sums tie as gradients do; where all cancels, they all do."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, k = long_case(name, rng)
        grad = x.astype(rng.choice(DTYPES))
        residual = {
            "nothing": np.zeros(x.size, np.float32),
            "what cancels": -np.where(np.isfinite(grad), grad, 0).astype(np.float32),
            "noise": rng.standard_normal(x.size).astype(np.float32),
        }[kept]
        check(grad, residual, k)


@hypothesis.settings(max_examples=200)
@hypothesis.given(data=st.data())
def test_any_floats(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 200))
    floats = hnp.arrays(np.float32, n, elements=st.floats(-(2.0**100), 2.0**100, width=32))
    check(data.draw(floats), data.draw(floats), data.draw(st.integers(0, n)))


def test_denormal_sums_are_kept_though_tensorflow_flushes_them() -> None:
    tiny = np.full(1000, 1e-41, np.float32)
    assert tf.add(tiny, tiny).numpy()[0] == 0, "TensorFlow no longer flushes: drop this control"
    check(tiny, tiny, 10)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 63, 64, 39_999])
def test_one_bad_entry_anywhere(bad: float, dtype: type, position: int) -> None:
    grad = np.ones(40_000, dtype)
    grad[position] = bad
    residual = np.random.default_rng(1).standard_normal(grad.size).astype(np.float32)
    result = custom_ops.mstopk_error_feedback(grad, residual, 3)
    assert not result.all_finite
    assert position in result.indices.numpy()
    assert result.new_residual.numpy().tobytes() == residual.tobytes()


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("held", [(True, False), (False, True), (False, False)], ids=str)
def test_buffers_that_nobody_else_holds(bad: bool, held: tuple[bool, bool]) -> None:
    # Temporaries: the kernel works in the gradient's buffer, or in the residual's, which it must leave
    # alone if the gradient is not finite.
    grad = np.random.default_rng(2).standard_normal(200_000).astype(np.float32)
    if bad:
        grad[-1] = np.nan

    @tf.function
    def step(*given: tf.Tensor) -> tuple[tf.Tensor, ...]:
        x, kept = (t if stays else t * 2.0 for t, stays in zip(given, held, strict=True))
        return custom_ops.mstopk_error_feedback(x, kept, 100)

    residual = np.full(grad.size, 0.5, np.float32)
    given = tf.constant(grad), tf.constant(residual)
    result = step(*given)
    factors = [1 if stays else 2 for stays in held]
    expected = custom_ops.mstopk_error_feedback(grad * factors[0], residual * factors[1], 100)
    for got, want in zip(result, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(given[0], grad)
    np.testing.assert_array_equal(given[1], residual)


@pytest.mark.parametrize(
    ("grad", "residual", "k", "message"),
    [
        (np.ones(3), np.ones(4), 1, r"vectors of one length, got shapes \[3\] and \[4\]"),
        (np.ones((2, 2)), np.ones((2, 2)), 1, r"flatten both with tf.reshape\(x, \[-1\]\)"),
        (np.ones(3), np.ones(3), 4, "Had 3, needed 4"),
        (np.ones(3), np.ones(3), -1, "Need k >= 0, got -1"),
    ],
)
def test_errors(grad: np.ndarray, residual: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        custom_ops.mstopk_error_feedback(np.float32(grad), np.float32(residual), k)


@pytest.mark.parametrize(
    ("grad", "residual", "k", "shapes"),
    [
        ([10], [10], 3, [[3], [3], [10], []]),
        ([None], [10], 3, [[3], [3], [10], []]),
        ([None], [None], None, [[None], [None], [None], []]),
        (None, None, 2, [[2], [2], [None], []]),
        (None, [10], 10, [[10], [10], [10], []]),
    ],
)
def test_shape_function(grad: list, residual: list, k: int | None, shapes: list) -> None:
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        k = placeholder(tf.int32, []) if k is None else k
        outputs = custom_ops.mstopk_error_feedback(
            placeholder(tf.float32, grad), placeholder(tf.float32, residual), k
        )
        assert [output.shape.as_list() for output in outputs] == shapes


def test_shape_errors() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [3])
        with pytest.raises(ValueError, match="must be equal, but are 3 and 4"):
            custom_ops.mstopk_error_feedback(x, tf.zeros([4]), 1)
        with pytest.raises(ValueError, match="last dimension >= k = 4 but is 3"):
            custom_ops.mstopk_error_feedback(x, x, 4)
        with pytest.raises(ValueError, match="must be rank 1 but is rank 2"):
            custom_ops.mstopk_error_feedback(tf.zeros([2, 3]), tf.zeros([2, 3]), 1)
        with pytest.raises(ValueError, match="must be scalar but has rank 1"):
            custom_ops.mstopk_error_feedback(x, x, [1, 2])
        with pytest.raises(ValueError, match="must be non-negative but is -1"):
            custom_ops.mstopk_error_feedback(x, x, -1)


def test_gradient_is_the_numeric_one() -> None:
    rng = np.random.default_rng(3)
    grad = np.float32(rng.permutation(20) * rng.choice([-1, 1], 20))
    residual = np.float32(rng.uniform(-0.2, 0.2, 20))

    def loss(grad: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        sent = custom_ops.mstopk_error_feedback(grad, residual, 5)
        return tf.reduce_sum(sent.values**2) + 3 * tf.reduce_sum(sent.new_residual**2)

    theory, numeric = tf.test.compute_gradient(loss, [grad, residual], delta=1e-2)
    np.testing.assert_allclose(theory[0], numeric[0], rtol=1e-2, atol=0.1)
    np.testing.assert_allclose(theory[1], numeric[1], rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("k", [0, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_any_type(dtype: type, k: int) -> None:
    grad, residual = tf.constant([1, -4, 2, 3], dtype), tf.zeros([4])
    with tf.GradientTape() as tape:
        tape.watch([grad, residual])
        sent = custom_ops.mstopk_error_feedback(grad, residual, k)
        loss = 2 * tf.reduce_sum(sent.values) + 3 * tf.reduce_sum(sent.new_residual)
    expected = [3.0] * 4
    for place in top_k(grad.numpy(), k):
        expected[place] = 2.0
    to_grad, to_residual = tape.gradient(loss, [grad, residual])
    assert to_grad.dtype == dtype
    assert to_grad.numpy().tolist() == to_residual.numpy().tolist() == expected


def test_gradient_of_a_refused_step_reaches_only_the_residual() -> None:
    grad = tf.constant([1.0, np.nan, 2.0])
    residual = tf.constant([1.0, 1.0, 1.0])
    with tf.GradientTape() as tape:
        tape.watch([grad, residual])
        kept = custom_ops.mstopk_error_feedback(grad, residual, 1).new_residual
    to_grad, to_residual = tape.gradient(kept, [grad, residual])
    assert to_grad.numpy().tolist() == [0, 0, 0]
    assert to_residual.numpy().tolist() == [1, 1, 1]
