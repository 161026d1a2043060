"""Prior and delayed rows, by brute force."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.scheduling.split import Split, contains


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (1, 1), (7, 20), (40, 9)])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_contains(sizes, dtype):
    rng = np.random.default_rng(sum(sizes))
    ids, wanted = (rng.integers(0, 15, n) for n in sizes)
    found = contains(tf.constant(ids, dtype), tf.constant(wanted, dtype))
    np.testing.assert_array_equal(found, np.isin(wanted, ids))


@pytest.mark.parametrize(
    "following", [([], []), ([7], []), ([1, 7], [3, 7, 9, 10, -1]), ([], list(range(10)))]
)
def test_split(following):
    """Two workers with ids [3, 7] and [7, 1, 5]: what is sent and what stays are the rows, each once."""
    ids, counts = tf.constant([3, 7, 7, 1, 5], tf.int64), [2, 3]
    following_counts, early = [len(part) for part in following], []
    following = np.concatenate(following)
    for part in np.split(following, following_counts[:1]):  # 10 and -1 are no rows
        early.append([i for i in part if i not in (3, 7, 1, 5, 10, -1)])
    is_prior = np.isin(ids, following)
    rows = np.arange(10, dtype="float32").reshape(5, 2) + 1
    sent = []
    for rank, mine in enumerate((slice(0, 2), slice(2, 5))):
        split = Split(ids, counts, rank, tf.constant(following, tf.int64), following_counts, rows=10)
        np.testing.assert_array_equal(split.early_ids, np.concatenate(early))
        np.testing.assert_array_equal(split.own_early_ids, early[rank])
        assert [int(n) for n in split.early_counts] == [len(part) for part in early]
        sent.append(split.prior(tf.constant(rows[mine])))
        np.testing.assert_array_equal(sent[-1], rows[mine][is_prior[mine]])
        np.testing.assert_array_equal(split.delayed_rows, rows[mine][~is_prior[mine]])
        np.testing.assert_array_equal(split.delayed_ids, ids.numpy()[~is_prior])
        assert [int(n) for n in split.counts] == [sum(is_prior[:2]), sum(is_prior[2:])]
    spread = split.spread(tf.concat(sent, axis=0))
    np.testing.assert_array_equal(spread, np.where(is_prior[:, None], rows, 0))
    gradient = tf.IndexedSlices(spread, tf.cast(ids, tf.int32), tf.constant([10, 2]))
    left = split.without_delayed(gradient)
    np.testing.assert_array_equal(left.indices, ids.numpy()[is_prior])
    np.testing.assert_array_equal(left.values, rows[is_prior])
