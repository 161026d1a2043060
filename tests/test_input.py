"""Shares of a global batch: together they are the batch, in order, for any number of workers."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy.input import _share, shard_batches, tag_batches

SIZES = [1, 2, 3, 5, 7, 8, 9, 16, 31]
WORKERS = [1, 2, 3, 4, 7, 8]


def parts(dataset, workers, tagged=True):
    """What each worker gets: a list of batches per worker."""
    return [list(shard_batches(dataset, workers, i, tagged)) for i in range(workers)]


def rows(batch) -> np.ndarray:
    """The rows of a tagged batch that count."""
    return batch.data.numpy()[: int(batch.rows)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("total", [0, *SIZES])
def test_shares_follow_each_other_and_differ_by_one_row(total, workers):
    shares = [_share(total, workers, i) for i in range(workers)]
    next_row = 0
    for start, count in shares:
        assert start == next_row
        next_row += count
    assert next_row == total
    counts = [count for _, count in shares]
    assert max(counts) - min(counts) <= 1 and counts == sorted(counts, reverse=True)
    in_graph = [_share(tf.constant(total, tf.int64), workers, i) for i in range(workers)]
    assert [(int(start), int(count)) for start, count in in_graph] == shares


@pytest.mark.parametrize("drop_remainder", [False, True], ids=["any_size", "static_size"])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_shards_make_up_the_batches(batch_size, workers, drop_remainder):
    data = tf.data.Dataset.range(19).batch(batch_size, drop_remainder=drop_remainder)
    expected = list(data.as_numpy_iterator())
    shards = parts(data, workers)
    assert {len(shard) for shard in shards} == {len(expected)}
    for step, batch in enumerate(expected):
        mine = [shard[step] for shard in shards]
        np.testing.assert_array_equal(np.concatenate([rows(m) for m in mine]), batch)
        for m in mine:
            assert int(m.total) == len(batch)
            assert len(m.data) == max(int(m.rows), 1)  # never an empty replica
            assert set(m.data.numpy()) <= set(batch)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_untagged_shards_are_plain_rows(workers):
    data = tf.data.Dataset.range(12).batch(4)
    shards = parts(data, workers, tagged=False)
    for step, batch in enumerate(data.as_numpy_iterator()):
        joined = np.concatenate([shard[step].numpy() for shard in shards])
        np.testing.assert_array_equal(joined, batch)


def test_untagged_small_batches_are_dropped_by_all_workers(capfd):
    data = tf.data.Dataset.range(9).batch(4)  # the last batch has one row
    assert [len(shard) for shard in parts(data, 2, tagged=False)] == [2, 2]
    assert "dropped a last global batch of 1 rows" in capfd.readouterr().err


def test_untagged_static_batches_need_a_row_per_worker():
    data = tf.data.Dataset.range(9).batch(2, drop_remainder=True)
    with pytest.raises(ValueError, match="2 rows for 3 workers.*batch size"):
        shard_batches(data, 3, 0, tagged=False)


@pytest.mark.parametrize("workers", [2, 3])
def test_structures_ragged_and_sparse(workers):
    lengths = [1, 3, 0, 2, 4]
    values = {
        "dense": np.arange(10).reshape(5, 2),
        "ragged": tf.RaggedTensor.from_row_lengths(np.arange(10), lengths),
        "sparse": tf.sparse.from_dense(np.diag(np.arange(1, 6))),
    }
    data = tf.data.Dataset.from_tensor_slices((values, np.arange(5))).batch(5)
    shards = [batches[0] for batches in parts(data, workers)]
    assert sum(int(s.rows) for s in shards) == 5
    dense = np.concatenate([s.data[0]["dense"] for s in shards])
    np.testing.assert_array_equal(dense, values["dense"])
    ragged = tf.concat([s.data[0]["ragged"] for s in shards], axis=0)
    assert ragged.to_list() == values["ragged"].to_list()
    sparse = np.concatenate([tf.sparse.to_dense(s.data[0]["sparse"]) for s in shards])
    np.testing.assert_array_equal(sparse, np.diag(np.arange(1, 6)))


@pytest.mark.parametrize("element", [{"x": [1, 2, 3]}, ([1, 2, 3],), ([1, 2, 3], [4, 5, 6])])
def test_structure_is_kept(element):
    data = tf.data.Dataset.from_tensors(tf.nest.map_structure(tf.constant, element))
    (batch,) = shard_batches(data, 3, 1, tagged=True)
    tf.nest.assert_same_structure(batch.data, data.element_spec)


def test_tagged_batches_go_on_with_rows_of_no_account():
    tagged = tag_batches(tf.data.Dataset.range(5).batch(3)).take(4)
    batches = list(tagged)
    assert [int(b.rows) for b in batches] == [3, 2, 0, 0]
    assert [int(b.total) for b in batches] == [3, 2, 0, 0]
    assert [b.data.numpy().tolist() for b in batches] == [[0, 1, 2], [3, 4], [0], [0]]


@pytest.mark.parametrize("element", [1, (1, [2])])
def test_unbatched_is_refused(element):
    dataset = tf.data.Dataset.from_tensors(element)
    with pytest.raises(ValueError, match=r"not batched.*dataset.batch\(global_batch_size\)"):
        input_pipeline.check_batched(dataset)
