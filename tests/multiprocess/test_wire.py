"""Every dtype through the collectives of several workers: sums, moves, refusals, bytes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.ranked_values import sum_of, value
from tf_sparse_strategy.topology import Group

GROUPS = list(Group)
NUMBERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"]
FLOATS = ["bfloat16", "float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]


@pytest.mark.parametrize("dtype", NUMBERS + FLOATS + COMPLEX)
def test_sums_of_every_dtype(comm, topology, dtype):
    x = tf.constant(value(topology.rank, 7, dtype))
    for group in GROUPS:
        expected = sum_of(topology, group, 7, dtype)
        result = comm.all_reduce(x, group)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)
        size, index = topology.size(group), topology.index(group)
        chunk = -(-7 // size)
        shard = comm.reduce_scatter(x, group)
        padded = np.concatenate([expected, np.zeros(chunk * size - 7, expected.dtype)])
        np.testing.assert_array_equal(shard, padded[index * chunk :][:chunk])


@pytest.mark.parametrize("dtype", NUMBERS + FLOATS + ["bool"])
def test_extremes_of_every_dtype(comm, topology, dtype):
    x = value(topology.rank, 7, dtype) if dtype != "bool" else np.arange(7) % 3 == topology.rank
    for group in GROUPS:
        parts = [
            value(r, 7, dtype) if dtype != "bool" else np.arange(7) % 3 == r
            for r in topology.ranks(group)
        ]
        for op, fold in {"min": np.minimum, "max": np.maximum}.items():
            result = comm.all_reduce(x, group, op)
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, fold.reduce(parts))


def test_complex_parts_do_not_mix(comm, topology):
    x = tf.complex(tf.range(3.0) + topology.rank, -10.0 * tf.ones([3]) * (topology.rank + 1))
    for group in GROUPS:
        ranks = topology.ranks(group)
        expected = sum(np.arange(3) + r - 10j * (r + 1) for r in ranks).astype("complex64")
        np.testing.assert_array_equal(comm.all_reduce(x, group), expected)


@pytest.mark.parametrize("dtype", NUMBERS + ["uint64", "bool"] + FLOATS + COMPLEX)
def test_every_dtype_moves_bit_by_bit(comm, topology, dtype):
    """Any pattern of bytes: infinities, -0, denormals, NaNs quiet and signalling."""
    np_dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)

    def pattern(rank):
        count = 8 * topology.num_workers * np_dtype.itemsize
        raw = np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 256, count)
        array = raw.astype(np.uint8).view(np_dtype).copy()
        if dtype in FLOATS:
            array[:5] = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0]).astype(np_dtype)
        return array

    x = tf.constant(pattern(topology.rank))
    assert comm.broadcast(x).numpy().tobytes() == pattern(0).tobytes()
    for group in GROUPS:
        ranks, index = topology.ranks(group), topology.index(group)
        gathered = np.concatenate([pattern(rank) for rank in ranks])
        assert comm.all_gather(x, group).numpy().tobytes() == gathered.tobytes()
        rows = 8 * topology.num_workers // len(ranks)
        if rows * len(ranks) == len(x):
            received, _ = comm.all_to_all(x, group=group)
            expected = np.concatenate([pattern(r)[index * rows :][:rows] for r in ranks])
            assert received.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "dtype, op, message",
    [
        ("string", "sum", "cannot carry dtype string"),
        ("uint64", "sum", "cannot carry dtype uint64"),
        ("bool", "sum", r"all_reduce\(op='sum'\) cannot carry dtype bool"),
        ("complex64", "max", r"all_reduce\(op='max'\) cannot carry dtype complex64"),
        ("qint8", "min", "cannot carry dtype qint8"),
    ],
)
def test_refused_sums(comm, topology, partners, dtype, op, message):
    refused = {
        "string": lambda: tf.constant(["a"]),
        "qint8": lambda: tf.quantization.quantize(tf.zeros([2]), 0, 1, tf.qint8).output,
    }
    x = refused.get(dtype, lambda: tf.cast(tf.zeros([2]), dtype))()
    for group in [group for group in GROUPS if not topology.is_trivial(group)]:
        with pytest.raises(TypeError, match=message + ".*Cast the value first"):
            comm.all_reduce(x, group, op)


def test_refused_moves(comm, partners):
    for move in (comm.all_gather, comm.all_to_all, comm.broadcast):
        with pytest.raises(TypeError, match="dtype string cannot travel.*decode_raw"):
            move(tf.constant(["a"] * comm.topology.num_workers))


def test_bfloat16_travels_as_stated(comm, topology):
    """Moves cost two bytes an element, sums four: wire.py's carriers."""
    p = topology.num_workers
    for collective, expected in (
        (comm.all_gather, 2 * 4 * p * (p - 1)),
        (comm.reduce_scatter, 4 * 4 * (p - 1)),
    ):
        before = comm.traffic()[1].total
        collective(tf.zeros([4 * p], tf.bfloat16))
        assert comm.traffic()[1].total - before == expected
