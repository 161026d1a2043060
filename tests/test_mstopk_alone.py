"""MSTopK in a process of its own: on several threads of TensorFlow's pool, and in buffers that are free."""

import gc
import os
from collections.abc import Callable

# Its allocator keeps what is freed.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from benchmarks.embedding import memory
from tests.mstopk_reference import adversarial, top_k

THREADS = 4
N = 5 * 2**18 + 7  # six blocks
KINDS = ("normal", "few_values", "nan_and_inf", "denormal", "zeros", "mixed_scales")


@pytest.fixture(autouse=True, scope="module")
def threads() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)  # raises after the first operation


@pytest.mark.parametrize("name", KINDS)
def test_blocks(name: str) -> None:
    x = adversarial(name, N, np.random.default_rng(0))
    for k in (1, N // 1000, N // 20):
        np.testing.assert_array_equal(custom_ops.mstopk(x, k).indices, top_k(x, k))


@pytest.mark.parametrize("sorted", [False, True])
def test_rows(sorted: bool) -> None:
    x = np.random.default_rng(1).standard_normal((16, 60_000)).astype(np.float32)
    indices = custom_ops.mstopk(x, 600, sorted=sorted).indices.numpy()
    np.testing.assert_array_equal(np.sort(indices, axis=-1), top_k(x, 600))


@pytest.mark.parametrize("name", KINDS)
def test_error_feedback(name: str) -> None:
    rng = np.random.default_rng(2)
    grad = adversarial(name, N, rng)
    residual = adversarial("denormal" if name == "denormal" else "normal", N, rng)
    with np.errstate(all="ignore"):
        acc = residual + grad
    values, indices, kept, all_finite = custom_ops.mstopk_error_feedback(grad, residual, N // 100)
    np.testing.assert_array_equal(indices, top_k(acc, N // 100))
    np.testing.assert_array_equal(values, acc[indices])
    if name == "nan_and_inf":
        assert not all_finite and kept.numpy().tobytes() == residual.tobytes()
    else:
        acc[indices] = 0
        np.testing.assert_array_equal(kept.numpy().view(np.uint32), acc.view(np.uint32))


@pytest.mark.parametrize("name", KINDS)
def test_the_papers_search(name: str) -> None:
    """Its sums are added up block by block, so that they are the same whoever takes which."""
    x = adversarial(name, N, np.random.default_rng(3))
    first = custom_ops.mstopk(x, 5000, num_samplings=8).indices.numpy()
    assert np.unique(first).size == 5000
    for _ in range(3):
        again = custom_ops.mstopk(x, 5000, num_samplings=8).indices
        np.testing.assert_array_equal(again, first)


def test_temporaries_are_reused() -> None:
    """Held by somebody else, the gradient's buffer cannot be, and the new residual needs one of its own."""

    def risen(step: Callable) -> int:
        step(grad, residual)
        gc.collect()
        memory.forget_peak()
        before = memory.resident()
        step(grad, residual)
        return memory.peak() - before

    @tf.function
    def temporary(grad: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        return custom_ops.mstopk_error_feedback(grad * 2.0, residual, 100).new_residual[:3]

    @tf.function
    def held(grad: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        doubled = grad * 2.0
        return custom_ops.mstopk_error_feedback(doubled, residual, 100).new_residual[:3], doubled

    n = 1 << 24
    grad, residual = tf.random.normal([n]), tf.zeros([n])
    assert risen(temporary) < 1.5 * 4 * n < risen(held)
