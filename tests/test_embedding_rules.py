"""What embeddings are built of, as pure functions: partition, placement, combiners, what is refused."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import lars_pto
from tf_sparse_strategy import optimizers
from tf_sparse_strategy.embedding import placement, separable
from tf_sparse_strategy.embedding.combiner import COMBINERS, combine
from tf_sparse_strategy.embedding.partition import ChunkPartition, ColumnPartition
from tf_sparse_strategy.topology import Topology


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 500))
def test_a_partition_cuts_each_column_and_row_once(rows, columns, workers, elements):
    partition = ColumnPartition(rows, columns, workers)
    table = np.arange(rows * columns).reshape(rows, columns)
    parts = [partition.of(table, rank) for rank in range(workers)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), table)
    assert tuple(part.shape[1] for part in parts) == partition.widths
    assert max(partition.widths) - min(partition.widths) <= 1
    chunks = list(partition.chunks(elements))
    assert [row for first, end in chunks for row in range(first, end)] == list(range(rows))


@given(st.lists(st.integers(1, 7), max_size=3), st.integers(1, 12))
def test_chunks_hold_each_element_once_and_come_back(shape, workers):
    partition = ChunkPartition(tuple(shape), workers)
    whole = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    parts = [partition.of(whole, rank) for rank in range(workers)]
    assert {part.shape for part in parts} == {(partition.grid.rows,)}
    np.testing.assert_array_equal(partition.of(tf.constant(whole), workers - 1), parts[-1])
    assert np.concatenate(parts)[: whole.size].tolist() == whole.ravel().tolist()
    assert not np.concatenate(parts)[whole.size :].any()
    np.testing.assert_array_equal(partition.whole(np.stack(parts, axis=1)), whole)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 31, 1, 1)])
def test_impossible_partitions(numbers):
    with pytest.raises(ValueError, match="="):
        ColumnPartition(*numbers)


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 4), max_size=12),
    st.sampled_from(COMBINERS),
    st.booleans(),
)
def test_combiners_are_their_formulas(count, segments, combiner, weighted):
    segments = [s % count for s in segments]
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(len(segments), 3)).astype("float32")
    weights = rng.uniform(0.1, 2, len(segments)).astype("float32") if weighted else np.ones(len(segments))
    expected = np.zeros((count, 3))
    for segment in range(count):
        mine = [i for i, s in enumerate(segments) if s == segment]
        divisor = {
            "sum": 1,
            "mean": weights[mine].sum(),
            "sqrtn": np.sqrt((weights[mine] ** 2).sum()),
        }[combiner]
        if mine:
            expected[segment] = (weights[mine][:, None] * rows[mine]).sum(axis=0) / divisor
    ids = tf.constant(segments, tf.int32)
    got = combine(tf.constant(rows), ids, count, combiner, tf.constant(weights) if weighted else None)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


TOPOLOGY = Topology(nodes=(0, 0, 1, 1, 2, 2, 3, 3), rank=0)


@pytest.mark.parametrize("nodes", [(0, 1), (0, 0, 1, 1), (0, 1, 1, 0), (0,) * 3, (0, 0, 0, 1, 1, 1)], ids=str)
def test_dividing_sends_no_more(nodes):
    """A node's workers may want the same rows, or not: U = G u is counted."""
    table, topology = placement.Table(800_000, 512), Topology(nodes, rank=0)
    assert placement.reason_to_keep_whole(table, topology, 10_000, ids=1000) is None


@pytest.mark.parametrize(
    "table, ids, reason",
    [
        (placement.Table(800_000, 512), 1700, None),
        (placement.Table(800_000, 512), None, None),
        (placement.Table(9_999, 512), 10, "fewer than min_rows=10000"),
        (placement.Table(800_000, 7), 10, "7 columns are fewer than the 8 workers"),
        (placement.Table(20_000, 64), 30_000, None),  # reducing it would send less, but is not what happens
        (placement.Table(30_000, 8), 20_000, None),
    ],
)
def test_placement(table, ids, reason):
    found = placement.reason_to_keep_whole(table, TOPOLOGY, min_rows=10_000, ids=ids)
    assert (found is None) if reason is None else (reason in found)


def test_gathering_is_cheaper_where_starting_takes_long():
    """Two collectives beat six."""
    table = placement.Table(20_000, 64)
    said = "gathering its gradient's rows is cheaper at 100 ids per step"
    starts = dataclasses.replace(placement.BY_BYTES, phase=1.0)
    assert said in placement.reason_to_keep_whole(table, TOPOLOGY, 10_000, ids=100, links=starts)


def test_bytes_are_the_formulas():
    p, u, row = 8, 1000, 64 * 4
    found = placement.costs(placement.Table(50_000, 64), Topology(tuple(range(p)), rank=0), u)
    assert found["columns"].bytes.total == 2 * (p - 1) * u * row // p + 4 * (p - 1) * (u + 1)
    assert found["gathered"].bytes.total == (p - 1) * u * (row + 4)
    assert found["reduced"].bytes.total == 2 * (p - 1) * 50_000 * row // p


def test_bytes_between_nodes_are_the_formulas():
    """4 nodes of 2: party.py."""
    u, row = 1000, 64 * 4
    found = placement.costs(placement.Table(50_000, 64), TOPOLOGY, u)["columns"].bytes
    assert found.cross == 2 * 3 * 2 * u * row // 8 + 4 * 3 * (2 * u + 1)
    assert found.local == 2 * 1 * u * row // 2 + 4 * 1 * (u + 1)


class Halving(keras.optimizers.SGD):
    elementwise = True

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


class Unknown(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)


class Renamed(keras.optimizers.Adam):
    pass


@pytest.mark.parametrize(
    "optimizer, reason",
    [
        *((getattr(keras.optimizers, name), None) for name in ("SGD", "AdamW", "Ftrl", "Lion", "Nadam")),
        (optimizers.LazyAdam, None),
        (optimizers.Adagrad, None),
        (Renamed, None),
        (Halving, None),
        (Unknown, "elementwise = True"),
        (lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)), None),
        (lars_pto.LAMB, "trust ratio"),
        (lars_pto.LARS, "trust ratio"),
        (keras.optimizers.Lamb, "trust ratio"),
        (keras.optimizers.Muon, "whole matrix"),
        (keras.optimizers.Adafactor, "means over rows"),
    ],
)
def test_which_optimizers_are_refused(optimizer, reason):
    found = separable.refused_optimizer(optimizer(0.1))
    assert (found is None) if reason is None else (reason in found)


def test_every_optimizer_of_keras_is_decided():
    """A new one is refused until it is looked at; none of today's is refused for want of a look."""
    wrappers = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")
    for name, optimizer in vars(keras.optimizers).items():
        if isinstance(optimizer, type) and name not in wrappers:
            assert "not known" not in (separable.refused_optimizer(optimizer(0.1)) or ""), name


def test_regularizers_and_constraints():
    for regularizer in (None, keras.regularizers.get("l1"), keras.regularizers.L1L2(0.1, 0.1)):
        assert separable.refused_regularizer(regularizer) is None
    assert "not known" in separable.refused_regularizer(keras.regularizers.OrthogonalRegularizer())
    for constraint in (None, keras.constraints.NonNeg(), keras.constraints.UnitNorm(axis=0)):
        assert separable.refused_constraint(constraint) is None
    assert "whole rows" in separable.refused_constraint(keras.constraints.MaxNorm(axis=1))
    assert "not known" in separable.refused_constraint(lambda w: w)
