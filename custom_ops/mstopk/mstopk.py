"""MSTopK: the k entries of largest magnitude, and error feedback fused with their selection."""

import contextlib
from typing import NamedTuple

import tensorflow as tf

from custom_ops.library import library

_ops = library(__file__)


class TopK(NamedTuple):
    """The winners of `mstopk`: `values` with their signs and `indices`, both [..., K]."""

    values: tf.Tensor
    indices: tf.Tensor


class ErrorFeedback(NamedTuple):
    """What `mstopk_error_feedback` sends (`values`, `indices`), keeps and reports."""

    values: tf.Tensor
    indices: tf.Tensor
    new_residual: tf.Tensor
    all_finite: tf.Tensor


def mstopk(
    x: tf.Tensor,
    k: tf.Tensor | int,
    num_samplings: int | None = None,
    index_type: tf.DType = tf.int32,
    sorted: bool = False,  # named as in tf.math.top_k
) -> TopK:
    """Selects the k entries of largest magnitude along the last dimension of `x`.

    Exactly k distinct indices for every input: all entries strictly above the k-th magnitude, then
    ties from the lowest index on. NaN ranks above Inf, and Inf above every finite number, so that
    an overflow is seen by whoever receives the result; NaNs rank by their bits. The result is the
    same on every device and for every number of threads. Cost: about one read of `x`, at most 3
    (with `num_samplings` 5) beside the sample. Scratch memory: on a CPU 8 bytes for each of 1.1 k to
    2.3 k candidates, where k/N is 0.1 % to 1 % of a long vector, more of others, and up to 8 N if the
    sample misleads; on a GPU 8 N of vectors too long for its shared memory (2^20 on large ones).

    XLA does not compile it: not in functions with `jit_compile=True`.

    Args:
      x: [..., N], float32, float16 or bfloat16.
      k: scalar, 0 <= k <= N; an integer or an int32 or int64 tensor.
      num_samplings: None (default) selects exactly. An integer S >= 0 selects by the bracket that S
        bisections of the MSTopK paper's threshold search end with; for comparison only, the exact
        selection is faster. The paper uses 30. On the CPU, wherever `x` is.
      index_type: tf.int32 (default) or tf.int64; int32 addresses rows of up to 2^31 elements.
      sorted: whether to order the winners by falling magnitude, ties by rising index. Otherwise (default)
        they come in ascending index order. On the CPU, wherever `x` is.

    Returns:
      A `TopK` of `values` [..., K], the entries with their signs in the dtype of `x`, and
      `indices` [..., K]. Differentiable in `x` through `values`.

    Raises:
      ValueError: if `num_samplings` is negative.
      tf.errors.InvalidArgumentError: if `k` is not a scalar or not in 0 .. N, if `x` is a scalar or of
        another dtype, or if `index_type` cannot address a row. What is known while tracing is a
        ValueError, a dtype a TypeError.

    Example:
      >>> values, indices = mstopk(tf.constant([0.5, -3.0, 1.0, 2.0]), k=2)
      >>> values.numpy().tolist(), indices.numpy().tolist()
      ([-3.0, 2.0], [1, 3])

    Source: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", MLSys 2021, section 3.1; the sampled selection follows Floyd and Rivest (1975).
    """
    if num_samplings is not None and num_samplings < 0:
        raise ValueError(
            f"num_samplings is {num_samplings}; it must be >= 0, or None for the exact selection."
        )
    has_no_gpu_kernel = sorted or num_samplings is not None
    with tf.device("CPU:0") if has_no_gpu_kernel else contextlib.nullcontext():
        values, indices = _ops().mstopk(
            input=x,
            k=k,
            num_samplings=-1 if num_samplings is None else num_samplings,
            index_type=index_type,
            sorted=sorted,
        )
    return TopK(values, indices)


def mstopk_error_feedback(
    grad: tf.Tensor,
    residual: tf.Tensor,
    k: tf.Tensor | int,
    index_type: tf.DType = tf.int32,
) -> ErrorFeedback:
    """Adds `grad` to `residual` and takes the k largest entries out of the sum.

    With acc = residual + grad in float32: `values` = acc at the k largest magnitudes (as `mstopk`
    selects them) and `new_residual` = acc with zeros there, so that values + new_residual == acc
    exactly. One pass over memory: two reads and one write of N elements.

    If `grad` has a NaN or an Inf, `new_residual` equals `residual` in every bit and `all_finite` is
    False: skip the step. `values` then holds the offending sums, so other workers notice too. A sum
    of finite numbers may overflow: `all_finite` is True, and Inf, the largest, is among `values`,
    unless there are more than k; those stay in `new_residual`.

    The bits of NaN that a sum has, and so which of several NaNs is chosen, are the device's.

    Args:
      grad: [N], float32, float16 or bfloat16. On CPUs the buffer of a float32 one is reused where
        nothing else refers to it.
      residual: [N], float32. On CPUs its buffer is reused where nothing else refers to it and that of
        `grad` cannot be; that reads `grad` once more, since a non-finite entry found late could not be
        undone.
      k: scalar, 0 <= k <= N.
      index_type: tf.int32 (default) or tf.int64.

    Returns:
      An `ErrorFeedback`: `values` [K] float32, `indices` [K] ascending, `new_residual` [N] float32,
      `all_finite` a bool scalar. Differentiable in `grad` and `residual`.

    Raises:
      tf.errors.InvalidArgumentError: if `grad` and `residual` are not vectors of one length and of these
        dtypes, `k` is not a scalar in 0 .. N, or `index_type` cannot address the vector. While tracing
        as `mstopk`.

    Example:
      >>> sent = mstopk_error_feedback(tf.constant([1.0, -4.0]), tf.constant([0.5, 0.5]), k=1)
      >>> sent.values.numpy().tolist(), sent.new_residual.numpy().tolist()
      ([-3.5], [1.5, 0.0])

    Source: error feedback as in Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", ICML 2019.
    """
    return ErrorFeedback(
        *_ops().mstopk_error_feedback(grad=grad, residual=residual, k=k, index_type=index_type)
    )


@tf.RegisterGradient("Mstopk")
def _mstopk_grad(op: tf.Operation, values_grad: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor | None]:
    """Scatters the gradient of `values` to where they came from; `k` has none.

    Positions are int64: rows times N may pass 2^31 though each row's indices fit int32.
    """
    x, indices = op.inputs[0], tf.cast(op.outputs[1], tf.int64)
    shape = tf.shape(x, out_type=tf.int64)
    n = shape[-1]
    rows = tf.reduce_prod(shape[:-1])
    k = tf.shape(indices, out_type=tf.int64)[-1]
    positions = tf.reshape(indices, [rows, k]) + n * tf.range(rows)[:, tf.newaxis]
    flat = tf.scatter_nd(
        tf.reshape(positions, [-1, 1]), tf.reshape(values_grad, [-1]), (rows * n)[tf.newaxis]
    )
    return [tf.reshape(flat, shape), None]


@tf.RegisterGradient("MstopkErrorFeedback")
def _error_feedback_grad(
    op: tf.Operation,
    values_grad: tf.Tensor,
    _indices_grad: tf.Tensor,
    residual_grad: tf.Tensor,
    _finite_grad: tf.Tensor,
) -> list[tf.Tensor | None]:
    """Winners pass on the gradient of `values`, the others that of `new_residual`; `k` has none.

    Where grad was not all finite, new_residual is residual, and does not depend on grad.
    """
    grad = op.inputs[0]
    positions = tf.cast(op.outputs[1], tf.int64)[:, tf.newaxis]
    all_finite = op.outputs[3]
    acc_grad = tf.scatter_nd(positions, values_grad, tf.shape(grad, out_type=tf.int64))
    stays = tf.tensor_scatter_nd_update(residual_grad, positions, tf.zeros_like(values_grad))
    to_grad = acc_grad + tf.where(all_finite, stays, tf.zeros_like(stays))
    to_residual = acc_grad + tf.where(all_finite, stays, residual_grad)
    return [tf.cast(to_grad, grad.dtype), to_residual, None]
