"""Collectives against NumPy on every worker: integer-valued data, so that equality is exact."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.topology import Group

SIZES = [0, 1, 2, 3, 7, 64, 1001]  # fewer than the workers, not divisible, divisible
GROUPS = list(Group)
MODES = ["eager", "static", "dynamic"]
NUMBERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"]
FLOATS = ["bfloat16", "float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]


@pytest.fixture
def partners(topology):
    """For what takes two: with one worker nothing can differ between workers."""
    if topology.num_workers == 1:
        pytest.skip("one worker has no partner")


def value(rank, n, dtype="float32"):
    """[n], distinct for each (rank, element); sums of 4 workers of 7 elements fit into int8."""
    return (4 * np.arange(n) + rank).astype(tf.as_dtype(dtype).as_numpy_dtype)


def call(mode, fn, arrays):
    """[fn(array), …]: eagerly, or in one graph with known or unknown first dimensions."""
    tensors = [tf.constant(array) for array in arrays]
    if mode == "eager":
        return [fn(x) for x in tensors]
    known = slice(None) if mode == "static" else slice(1, None)
    unknown = [] if mode == "static" else [None]
    specs = [tf.TensorSpec([*unknown, *x.shape[known]], x.dtype) for x in tensors]
    return tf.function(lambda *xs: [fn(x) for x in xs], input_signature=specs)(*tensors)


def sum_of(topology, group, n, dtype="float32"):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    total = np.zeros(n, np.complex128)
    for rank in topology.ranks(group):
        total += value(rank, n).astype(np.complex128)
    return total.astype(dtype) if np.iscomplexobj(np.zeros(0, dtype)) else total.real.astype(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_all_reduce(comm, topology, group, mode):
    folds = {"sum": np.sum, "min": np.min, "max": np.max}
    results = call(
        mode,
        lambda x: [comm.all_reduce(x, group, op) for op in folds],
        [value(topology.rank, n) for n in SIZES],
    )
    for n, of_ops in zip(SIZES, results, strict=True):
        parts = np.stack([value(rank, n) for rank in topology.ranks(group)])
        for (op, fold), result in zip(folds.items(), of_ops, strict=True):
            np.testing.assert_array_equal(result, fold(parts, axis=0), f"{op} of {n}")


@pytest.mark.parametrize("group", GROUPS)
def test_all_reduce_keeps_the_shape(comm, topology, group):
    shapes = [(), (1,), (2, 3), (3, 0), (2, 1, 5)]
    inputs = [tf.reshape(value(topology.rank, int(np.prod(shape))), shape) for shape in shapes]
    traced = tf.function(lambda *xs: [comm.all_reduce(x, group) for x in xs])
    traced = traced.get_concrete_function(*inputs)
    assert [tuple(shape) for shape in traced.output_shapes] == shapes
    for x, result in zip(inputs, traced(*inputs), strict=True):
        expected = sum_of(topology, group, int(np.prod(x.shape))).reshape(x.shape)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(comm.all_reduce(x, group), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_reduce_scatter(comm, topology, group, mode):
    size, index = topology.size(group), topology.index(group)
    inputs = [value(topology.rank, n) for n in SIZES]
    shards = call(mode, lambda x: comm.reduce_scatter(x, group), inputs)
    for n, shard in zip(SIZES, shards, strict=True):
        chunk = -(-n // size)
        expected = np.pad(sum_of(topology, group, n), [0, chunk * size - n])
        np.testing.assert_array_equal(shard, expected[index * chunk :][:chunk], f"n={n}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_all_gather(comm, topology, group, mode):
    inputs = [value(topology.rank, n) for n in SIZES]
    results = call(mode, lambda x: comm.all_gather(x, group), inputs)
    for n, result in zip(SIZES, results, strict=True):
        expected = np.concatenate([value(rank, n) for rank in topology.ranks(group)])
        np.testing.assert_array_equal(result, expected, f"n={n}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_all_gather_of_uneven_matrices(comm, topology, group, mode):
    factors = (0, 3, 7)  # nothing at all; some workers with nothing; all with something

    def rows(rank, factor):
        n = rank * factor % 5
        return value(rank, n * 2).reshape(n, 2)

    inputs = [rows(topology.rank, factor) for factor in factors]
    results = call(mode, lambda x: comm.all_gather(x, group), inputs)
    for factor, result in zip(factors, results, strict=True):
        expected = np.concatenate([rows(rank, factor) for rank in topology.ranks(group)])
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_all_to_all_of_uneven_splits(comm, topology, group, mode):
    ranks, factors = topology.ranks(group), (0, 1, 2)

    def rows(source, target, factor):
        """[rows, 2] that tell where they come from and where they go."""
        n = factor * (source + 2 * target) % 4
        return source * 1000 + target * 100 + np.arange(2 * n, dtype="float32").reshape(n, 2)

    outgoing = [[rows(topology.rank, target, factor) for target in ranks] for factor in factors]
    splits = iter([[len(part) for part in parts] for parts in outgoing])
    results = call(
        mode,
        lambda x: comm.all_to_all(x, next(splits), group),
        [np.concatenate(parts) for parts in outgoing],
    )
    for factor, (received, counts) in zip(factors, results, strict=True):
        incoming = [rows(source, topology.rank, factor) for source in ranks]
        np.testing.assert_array_equal(received, np.concatenate(incoming))
        np.testing.assert_array_equal(counts, [len(part) for part in incoming])


@pytest.mark.parametrize("group", GROUPS)
def test_all_to_all_in_equal_parts(comm, topology, group):
    ranks, index = topology.ranks(group), topology.index(group)
    received, counts = comm.all_to_all(value(topology.rank, 3 * len(ranks)), group=group)
    expected = [value(rank, 3 * len(ranks))[index * 3 :][:3] for rank in ranks]
    np.testing.assert_array_equal(received, np.concatenate(expected))
    np.testing.assert_array_equal(counts, [3] * len(ranks))


def test_all_to_all_names_rows_that_nobody_would_get(comm, topology):
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits must sum to the rows of x"):
        comm.all_to_all(tf.zeros([2 * topology.num_workers + 1]), [2] * topology.num_workers)


@pytest.mark.parametrize("mode", MODES)
def test_broadcast(comm, topology, mode):
    roots = range(topology.num_workers)
    inputs = [value(topology.rank, n) for n in SIZES]
    results = call(mode, lambda x: [comm.broadcast(x, root) for root in roots], inputs)
    for n, of_roots in zip(SIZES, results, strict=True):
        for root, result in zip(roots, of_roots, strict=True):
            np.testing.assert_array_equal(result, value(root, n), f"root={root}, n={n}")


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
    root = topology.num_workers - 1
    assert comm.broadcast(x, root).numpy().tobytes() == pattern(root).tobytes()
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


def test_errors_of_arguments(comm):
    with pytest.raises(ValueError, match=r"op='mean' is not one of \['max', 'min', 'sum'\]"):
        comm.all_reduce(tf.zeros([2]), op="mean")
    with pytest.raises(ValueError, match=r"all_gather got a scalar.*value\[tf.newaxis\]"):
        comm.all_gather(tf.constant(1.0))
    with pytest.raises(ValueError, match=r"reduce_scatter got shape \(2, 2\).*reshape"):
        comm.reduce_scatter(tf.zeros([2, 2]))


@pytest.mark.parametrize("group", GROUPS)
def test_all_workers_of_a_group_hold_the_same_bits(comm, topology, group):
    """Floating-point sums depend on the order of addition: it must be one order for all."""
    rng = np.random.default_rng(topology.rank)
    x = tf.constant(rng.normal(size=1001) * 10.0 ** rng.integers(-8, 8, 1001), tf.float32)
    x = tf.tensor_scatter_nd_update(x, [[0], [1]], [np.inf, np.nan if topology.rank else -np.inf])
    for op in ("sum", "min", "max"):
        mine = tf.bitcast(comm.all_reduce(x, group, op), tf.int32)
        everyone = comm.all_gather(mine[tf.newaxis])
        for rank in topology.ranks(group):
            np.testing.assert_array_equal(everyone[rank], mine)


@pytest.mark.parametrize("group", GROUPS)
def test_iterations_of_a_loop_do_not_overtake_each_other(comm, topology, group):
    """No iteration needs another's result: only the collective itself keeps them in order."""

    @tf.function
    def loop(x):
        def body(i, results):
            reduced = comm.all_reduce(x + 100.0 * tf.cast(i, tf.float32), group)
            return i + 1, results.write(i, reduced)

        results = tf.TensorArray(tf.float32, 20, element_shape=[3])
        _, results = tf.while_loop(lambda i, _: i < 20, body, [0, results], parallel_iterations=10)
        return results.stack()

    offsets = 100.0 * topology.size(group) * np.arange(20)[:, np.newaxis]
    expected = sum_of(topology, group, 3) + offsets
    np.testing.assert_array_equal(loop(value(topology.rank, 3)), expected)


def test_conditions_that_all_workers_take_alike(comm, topology):
    @tf.function
    def choose(x, which):
        return tf.cond(
            which,
            lambda: comm.all_reduce(x),
            lambda: comm.all_reduce(-comm.all_reduce(x, Group.LOCAL), Group.CROSS),
        )

    x, total = value(topology.rank, 5), sum_of(topology, Group.GLOBAL, 5)
    np.testing.assert_array_equal(choose(x, tf.constant(True)), total)
    if topology.is_uniform:
        np.testing.assert_array_equal(choose(x, tf.constant(False)), -total)


def test_nested_functions_called_twice(comm, topology):
    @tf.function
    def inner(x):
        return comm.all_reduce(x)

    @tf.function
    def outer(x):
        return inner(x), inner(2.0 * x), comm.all_reduce(3.0 * x)

    total = sum_of(topology, Group.GLOBAL, 4)
    for result, factor in zip(outer(value(topology.rank, 4)), (1, 2, 3), strict=True):
        np.testing.assert_array_equal(result, factor * total)


def test_one_worker_retraces(comm, topology):
    @tf.function(reduce_retracing=False)
    def step(x, scale):
        return comm.all_reduce(x * scale), comm.all_gather(x, Group.LOCAL)

    if topology.rank == 0:
        for other in (2, 3):
            step.get_concrete_function(tf.TensorSpec([9], tf.float32), other)
    # Python numbers: a trace for each; the ranks meet them in different order.
    for scale in (2, 5, 3):
        summed, local = step(value(topology.rank, 3), scale)
        np.testing.assert_array_equal(summed, scale * sum_of(topology, Group.GLOBAL, 3))
        parts = [value(rank, 3) for rank in topology.ranks(Group.LOCAL)]
        np.testing.assert_array_equal(local, np.concatenate(parts))


def test_one_worker_traces_an_extra_function(comm, topology):
    extra = tf.function(lambda x: comm.all_reduce(comm.all_reduce(x)))
    step = tf.function(lambda x: comm.all_reduce(x))
    if topology.rank == topology.num_workers - 1:
        extra.get_concrete_function(tf.TensorSpec([3]))
    x, total = tf.constant(value(topology.rank, 3)), sum_of(topology, Group.GLOBAL, 3)
    np.testing.assert_array_equal(step(x), total)
    np.testing.assert_array_equal(extra(x), topology.num_workers * total)


def test_one_worker_traces_the_inner_function_first(comm, topology):
    @tf.function
    def inner(x):
        return comm.all_reduce(x)

    @tf.function
    def outer(x):
        return inner(x)

    if topology.rank == 0:
        inner.get_concrete_function(tf.TensorSpec([3]))
    np.testing.assert_array_equal(
        outer(tf.constant(value(topology.rank, 3))), sum_of(topology, Group.GLOBAL, 3)
    )


def test_two_functions_of_one_name_in_one_step(comm, topology):
    """As two optimizers of one class and equal shapes make, the generator's and the critic's."""

    def make(factor):
        @tf.function
        def apply(x):
            return comm.all_reduce(factor * x, purpose="gradients")

        return apply

    generator, critic = make(2.0), make(3.0)

    @tf.function(reduce_retracing=False)
    def step(x):
        return generator(x), critic(x)

    if topology.rank == 0:  # retraced here alone, and with one of the two traced already
        critic.get_concrete_function(tf.TensorSpec([4]))
        step.get_concrete_function(tf.TensorSpec([4]))
    for n in (3, 4):
        total = sum_of(topology, Group.GLOBAL, n)
        first, second = step(tf.constant(value(topology.rank, n)))
        np.testing.assert_array_equal(first, 2 * total)
        np.testing.assert_array_equal(second, 3 * total)


def test_workers_are_ready_in_different_order(comm, topology):
    """Independent collectives of one step pair by name, whoever comes first."""

    def late(x, order):
        def wait(x):
            time.sleep(0.02 * order)
            return x

        return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)

    @tf.function
    def step(x):
        delayed = [late(x, (i + topology.rank) % 4) for i in range(4)]
        return [[comm.all_reduce((i + 1.0) * x, g) for g in GROUPS] for i, x in enumerate(delayed)]

    for i, of_groups in enumerate(step(tf.constant(value(topology.rank, 3)))):
        for group, result in zip(GROUPS, of_groups, strict=True):
            expected = (i + 1) * sum_of(topology, group, 3)
            np.testing.assert_array_equal(result, expected)


def test_mismatch_is_an_error_on_every_worker_and_horovod_survives(comm, topology, partners):
    mine = topology.rank == 0
    wrong = {
        "shape": lambda: comm.all_reduce(tf.zeros([4 if mine else 3])),
        "dtype": lambda: comm.all_reduce(tf.zeros([3], tf.float64 if mine else tf.float32)),
        "row": lambda: comm.all_gather(tf.zeros([2, 4 if mine else 3])),
        "broadcast": lambda: comm.broadcast(tf.zeros([4 if mine else 3])),
        "exchange": lambda: comm.all_to_all(tf.zeros([topology.num_workers, 4 if mine else 3])),
    }
    for collective in wrong.values():
        for run in (collective, tf.function(collective)):
            with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched"):
                run()
            total = comm.all_reduce(tf.constant(value(topology.rank, 3)))
            np.testing.assert_array_equal(total, sum_of(topology, Group.GLOBAL, 3))


def test_barrier(comm, topology):
    time.sleep(0.2 * topology.rank)
    arrived = time.time()
    comm.barrier()
    left = time.time()
    last = comm.all_reduce(tf.constant(arrived, tf.float64), op="max")
    assert left >= float(last)


@pytest.mark.parametrize("mode", MODES)
def test_traffic_is_the_cost_table(comm, topology, mode):
    p, rank = topology.num_workers, topology.rank

    def split(group, per_peer):
        """[local, cross] bytes of a direct exchange."""
        peers = [r for r in topology.ranks(group) if r != rank]
        local = sum(topology.nodes[r] == topology.node for r in peers)
        return per_peer * np.array([local, len(peers) - local])

    def ring(total, step):
        """[local, cross]: everything goes to one neighbour."""
        cross = topology.nodes[(rank + step) % p] != topology.node
        return total * np.array([not cross, cross]) if p > 1 else np.array([0, 0])

    def check(fn, n, calls, expected):
        before_calls, before = comm.traffic()
        call(mode, fn, [value(rank, n)])
        after_calls, after = comm.traffic()
        assert after_calls - before_calls == calls
        sent = [after.local - before.local, after.cross - before.cross]
        np.testing.assert_array_equal(sent, expected)

    moving, rows, n = int(p > 1), 12 * p, 1001
    check(comm.all_reduce, n, moving, ring(2 * 4 * n * (p - 1) // p, -1))
    check(comm.all_gather, n, moving, ring(4 * n * (p - 1), +1))
    check(comm.all_to_all, rows, moving, split(Group.GLOBAL, 4 * rows // p))
    for group in GROUPS:
        size, exists = topology.size(group), int(not topology.is_trivial(group))
        shard = 4 * -(-n // size)
        check(functools.partial(comm.reduce_scatter, group=group), n, exists, split(group, shard))
        if group is not Group.GLOBAL:
            reduce = functools.partial(comm.all_reduce, group=group)
            check(reduce, n, 2 * exists, split(group, 2 * shard))
            check(functools.partial(comm.all_gather, group=group), n, exists, split(group, 4 * n))
    before = comm.traffic()[1].total
    call(mode, functools.partial(comm.broadcast, root=p - 1), [value(rank, n)])
    sent = comm.traffic()[1].total - before
    assert sent % (4 * n) == 0 and sent <= 4 * n * (p - 1).bit_length()
    assert int(comm.all_reduce(tf.constant(sent))) == 4 * n * (p - 1)


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
