"""Collectives against NumPy on every worker: integer-valued data, so that equality is exact."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.ranked_values import sum_of, value
from tests.thorough import thorough
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.topology import Group

SIZES = [0, 1, 2, 3, 7, 64, 1001]  # fewer than the workers, not divisible, divisible
GROUPS = list(Group)
MODES = ["eager", "static", "dynamic"]


def call(mode, fn, arrays):
    """[fn(array), …]: eagerly, or in one graph with known or unknown first dimensions."""
    tensors = [tf.constant(array) for array in arrays]
    if mode == "eager":
        return [fn(x) for x in tensors]
    known = slice(None) if mode == "static" else slice(1, None)
    unknown = [] if mode == "static" else [None]
    specs = [tf.TensorSpec([*unknown, *x.shape[known]], x.dtype) for x in tensors]
    return tf.function(lambda *xs: [fn(x) for x in xs], input_signature=specs)(*tensors)


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


@pytest.mark.parametrize("sizes", [(1, 0, 300_000, 7), (200_000,), (0, 0, 0, 500_000), (0,)], ids=str)
def test_all_to_all_in_pairs(comm, topology, sizes):
    """Large messages go one by one, between pairs of which one may have nothing for the other."""

    def message(source, target):
        n = sizes[(3 * source + target) % len(sizes)]
        return (np.arange(n, dtype=np.int64) * (2 * source + 5 * target + 1) // 3).astype(np.uint8)

    ranks = range(topology.num_workers)
    outgoing = [message(topology.rank, target) for target in ranks]
    rows, splits = comm.all_to_all(tf.constant(np.concatenate(outgoing)), [len(part) for part in outgoing])
    incoming = [message(source, topology.rank) for source in ranks]
    np.testing.assert_array_equal(rows, np.concatenate(incoming))
    np.testing.assert_array_equal(splits, [len(part) for part in incoming])


PIECE = 64 << 10  # bytes, of which Gloo's all-gather makes at most eight of a block


@pytest.mark.parametrize(
    "bytes_by_rank",
    [(PIECE,), (PIECE - 1, PIECE + 1), (8 * PIECE, 0, 8 * PIECE + 1), (1, 5 << 20, 3 * PIECE + 7, 0)],
    ids=str,
)
def test_all_gather_in_pieces(comm, topology, bytes_by_rank):
    """Blocks of one piece, of several, of larger ones; next to none."""

    def block(rank):
        n = bytes_by_rank[rank % len(bytes_by_rank)]
        return (np.arange(n, dtype=np.int64) * (2 * rank + 3) // 7).astype(np.uint8)

    gathered = comm.all_gather(tf.constant(block(topology.rank)))
    np.testing.assert_array_equal(gathered, np.concatenate([block(r) for r in range(topology.num_workers)]))


@thorough
def test_all_gather_beyond_2_gib(comm, topology):
    """The first block is so large that others begin beyond what 32 bits can tell."""
    own = value(topology.rank, 4) if topology.rank else np.zeros([(1 << 29) + 2], "float32")
    gathered = comm.all_gather(tf.constant(own))
    assert gathered.shape[0] == (1 << 29) + 2 + 4 * (topology.num_workers - 1)
    for rank in range(1, topology.num_workers):
        begin = (1 << 29) + 2 + 4 * (rank - 1)
        np.testing.assert_array_equal(gathered[begin : begin + 4], value(rank, 4))


@thorough
def test_all_gather_of_more_than_can_be_counted(comm, partners, topology):
    """Horovod would write the last blocks before the output; all workers are told, and go on."""
    own = tf.zeros([(1 << 31) // topology.num_workers + 1], tf.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="An all-gather of 214748.* Gather slices"):
        comm.all_gather(own)
    assert comm.all_reduce(tf.ones([])) == topology.num_workers


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
    unknown = [tf.TensorSpec([None])]
    traced = tf.function(lambda x: comm.all_to_all(x, [2] * topology.num_workers)[0], input_signature=unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits_must_sum_to_the_rows_of_x"):
        traced(tf.zeros([2 * topology.num_workers + 1]))


@pytest.mark.parametrize("mode", MODES)
def test_broadcast(comm, topology, mode):
    results = call(mode, comm.broadcast, [value(topology.rank, n) for n in SIZES])
    for n, result in zip(SIZES, results, strict=True):
        np.testing.assert_array_equal(result, value(0, n), f"n={n}")


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
        if group is Group.GLOBAL and topology.is_nested:  # a node's sum crosses its link
            g, m = topology.local_workers, topology.num_nodes
            sent = [shard * (g - 1) * m, shard * (m - 1)]
            check(comm.reduce_scatter, n, 2, sent)
        else:
            check(functools.partial(comm.reduce_scatter, group=group), n, exists, split(group, shard))
        if group is not Group.GLOBAL:
            reduce = functools.partial(comm.all_reduce, group=group)
            check(reduce, n, 2 * exists, split(group, 2 * shard))
            check(functools.partial(comm.all_gather, group=group), n, exists, split(group, 4 * n))
    before = comm.traffic()[1].total
    call(mode, comm.broadcast, [value(rank, n)])
    sent = comm.traffic()[1].total - before
    assert sent % (4 * n) == 0 and sent <= 4 * n * (p - 1).bit_length()
    assert int(comm.all_reduce(tf.constant(sent))) == 4 * n * (p - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_silent_collectives_need_nobody(topology, group, mode):
    """One worker alone gets all shapes, and has sent nothing."""
    silent, x = Collectives(topology), np.ones([4 * topology.num_workers], np.float32)
    silent.silent = True
    if topology.rank:
        return
    size, n = topology.size(group), len(x)
    calls = {
        silent.all_reduce: n,
        silent.all_gather: n * size,
        silent.reduce_scatter: -(-n // size),
        lambda x, group: silent.all_to_all(x, group=group)[0]: n,
        lambda x, group: silent.all_to_all(x, group=group)[1]: size,
        lambda x, group: silent.broadcast(x): n,
    }
    for fn, length in calls.items():
        [result] = call(mode, lambda x, fn=fn: fn(x, group=group), [x])
        assert result.shape == [length]
    assert silent.traffic()[1].total == 0
