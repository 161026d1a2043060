"""Every dtype TensorFlow has is either carried without loss or refused by name."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy import wire

# As wire.py's table: (summed as, moved as); None for refused.
TABLE = {
    "bfloat16": ("float32", "int16"),
    "bool": (None, "bool"),
    "int16": ("int32", "int16"),
    "uint16": ("int32", "uint16"),
    "uint32": ("int64", "int32"),
    "uint64": (None, "int64"),
    "complex64": ("float32", "float32"),
    "complex128": ("float64", "float64"),
    "string": (None, None),
    **{name: (name, name) for name in ("uint8", "int8", "int32", "int64")},
    **{name: (name, name) for name in ("float16", "float32", "float64")},
}

REFUSED = {
    "string": ("sum", "min", "max"),
    "uint64": ("sum", "min", "max"),
    "bool": ("sum",),
    "complex64": ("min", "max"),
    "complex128": ("min", "max"),
}


def sample(dtype):
    return tf.constant(["a"]) if dtype == "string" else tf.cast(tf.constant([0, 1, 1]), dtype)


def carrier_of(carry, *args):
    try:
        return carry(*args)[0].dtype.name
    except TypeError:
        return None


@pytest.mark.parametrize("dtype", sorted(TABLE))
def test_table(dtype):
    x = sample(dtype)
    assert (carrier_of(wire.for_reduction, x, "sum"), carrier_of(wire.for_moving, x)) == TABLE[
        dtype
    ]


@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("dtype", sorted(TABLE))
def test_reduction_restores_dtype_and_value(dtype, op):
    try:
        carried, restore = wire.for_reduction(sample(dtype), op)
    except TypeError as error:
        assert dtype in str(error) and "Cast the value first" in str(error)
        refused = {
            "string": ("sum", "min", "max"),
            "uint64": ("sum", "min", "max"),
            "bool": ("sum",),
        }
        complex_refused = ("min", "max") if dtype.startswith("complex") else ()
        assert op in refused.get(dtype, complex_refused)
        return
    assert op not in REFUSED.get(dtype, ())
    assert carried.dtype in wire.REDUCED
    assert restore(carried).dtype == dtype
    np.testing.assert_array_equal(restore(carried), sample(dtype))


@pytest.mark.parametrize("dtype", sorted(name for name in TABLE if name != "string"))
def test_moving_preserves_every_bit(dtype):
    np_dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    raw = np.random.default_rng(0).integers(
        0, 2 if dtype == "bool" else 256, 64 * np_dtype.itemsize
    )
    array = raw.astype(np.uint8).view(np_dtype)
    carried, restore = wire.for_moving(tf.constant(array))
    assert carried.dtype in wire.MOVED
    assert restore(carried).numpy().tobytes() == array.tobytes()


def test_sums_in_carriers_are_exact():
    """The carrier is wider: P workers' values do not overflow on the way, only in the result."""
    top = tf.constant([65535], tf.uint16)
    carried, restore = wire.for_reduction(top, "sum")
    assert int(carried[0]) * 3 == 196605
    assert int(restore(carried * 3)[0]) == 196605 % 65536
    carried, restore = wire.for_reduction(tf.constant([256.0, 1.0], tf.bfloat16), "sum")
    # 256 + 1 + 1 in bfloat16, one after the other, stays 256.
    assert float(restore(tf.reshape(carried[0] + carried[1] + carried[1], [1]))[0]) == 258.0


def test_refused_dtypes_name_the_remedy():
    with pytest.raises(TypeError, match="string cannot travel.*decode_raw"):
        wire.for_moving(tf.constant(["a"]))
    quantized = tf.quantization.quantize(tf.zeros([2]), 0, 1, tf.qint8).output
    with pytest.raises(TypeError, match="qint8 cannot travel"):
        wire.for_moving(quantized)
    with pytest.raises(TypeError, match=r"all_reduce\(op='sum'\) cannot carry dtype qint8"):
        wire.for_reduction(quantized, "sum")
