"""Which dtypes travel as they are, and how the others are carried without loss.

Horovod 0.28.1 reduces {uint8, int8, int32, int64, float16, float32, float64} and moves those and
{uint16, int16, bool}. Everything else travels in a carrier:

| dtype                              | summed as          | moved as              |
|------------------------------------|--------------------|-----------------------|
| bfloat16                           | float32            | its bits, int16       |
| bool                               | uint8 (min / max)  | bool                  |
| int16, uint16                      | int32              | itself                |
| uint32                             | int64              | its bits, int32       |
| uint64                             | refused            | its bits, int64       |
| complex64, complex128              | pairs of floats    | pairs of floats       |
| string, resource, variant, qint    | refused            | refused               |
"""

from collections.abc import Callable

import tensorflow as tf

REDUCED = {tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64}
MOVED = REDUCED | {tf.uint16, tf.int16, tf.bool}

_SUM_CARRIER = {
    tf.bfloat16: tf.float32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_MOVE_BITS = {tf.bfloat16: tf.int16, tf.uint32: tf.int32, tf.uint64: tf.int64}
_COMPLEX = {tf.complex64: tf.float32, tf.complex128: tf.float64}

Restore = Callable[[tf.Tensor], tf.Tensor]


def _identity(x):
    return x


def _as_pairs(x: tf.Tensor) -> tuple[tf.Tensor, Restore]:
    pairs = tf.stack([tf.math.real(x), tf.math.imag(x)], axis=-1)
    return pairs, lambda y: tf.complex(y[..., 0], y[..., 1])


def for_reduction(x: tf.Tensor, op: str) -> tuple[tf.Tensor, Restore]:
    """Returns (`x` in a dtype Horovod can reduce, the function that brings the result back).

    Args:
      x: any tensor.
      op: "sum", "min" or "max".

    Raises:
      TypeError: no exact carrier exists for `x.dtype` under `op`.
    """
    dtype = x.dtype
    if dtype in REDUCED:
        return x, _identity
    if dtype in _SUM_CARRIER:
        return tf.cast(x, _SUM_CARRIER[dtype]), lambda y: tf.cast(y, dtype)
    if dtype == tf.bool and op in ("min", "max"):
        return tf.cast(x, tf.uint8), lambda y: tf.cast(y, tf.bool)
    if dtype in _COMPLEX and op == "sum":
        return _as_pairs(x)
    raise TypeError(
        f"all_reduce(op={op!r}) cannot carry dtype {dtype.name}; allowed are "
        f"{sorted(d.name for d in REDUCED | set(_SUM_CARRIER))}, complex with op='sum' and bool "
        "with op='min'/'max'. Cast the value first."
    )


def summed_as(dtype: tf.DType) -> tf.DType:
    """In which sums of `dtype` travel."""
    return _SUM_CARRIER.get(dtype, dtype)


def for_moving(x: tf.Tensor) -> tuple[tf.Tensor, Restore]:
    """Returns (`x` in a dtype Horovod can gather, exchange and broadcast, the way back).

    Bits are preserved exactly, NaN payloads included.

    Raises:
      TypeError: strings, resources and variants do not travel.
    """
    dtype = x.dtype
    if dtype in MOVED:
        return x, _identity
    if dtype in _MOVE_BITS:
        return tf.bitcast(x, _MOVE_BITS[dtype]), lambda y: tf.bitcast(y, dtype)
    if dtype in _COMPLEX:
        return _as_pairs(x)
    raise TypeError(
        f"dtype {dtype.name} cannot travel between workers; allowed are numeric and bool dtypes. "
        "Encode strings as uint8 (tf.io.decode_raw) or keep them on the worker."
    )


def check_countable(x: tf.Tensor) -> None:
    """Refuses what Horovod, which counts elements by C's int, would send in part.

    Raises:
      ValueError: `x`, if its shape is known, has 2^31 elements or more.
    """
    n = x.shape.num_elements()
    if n is not None and n >= 2**31:
        raise ValueError(
            f"a tensor of shape {x.shape} has {n} elements: one collective moves fewer than 2**31. Send "
            "slices of it, one after the other."
        )


def narrow(x: tf.Tensor, dtype: str | tf.DType, summands: int = 1) -> tf.Tensor:
    """Float32 `x` in `dtype`: what is finite stays finite, cut to the largest number there is.

    Args:
      x: float32.
      dtype: of the result.
      summands: how many such results are added up, one after the other, as float16; their sum is finite, too.

    Example:
      >>> narrow(tf.constant([1e6, float("inf")]), tf.float16).numpy().tolist()
      [65504.0, inf]
    """
    dtype = tf.as_dtype(dtype)
    if dtype == x.dtype:
        return x
    limit = tf.cast(dtype.max, x.dtype)
    if summands > 1:
        limit /= summands * (1 + 2**-11) ** summands  # each, and each sum, may be rounded up
    return tf.cast(tf.where(tf.math.is_finite(x), tf.clip_by_value(x, -limit, limit), x), dtype)
