"""Early rows: positions and order, by brute force."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.scheduling.early import missing_first, positions


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (1, 1), (7, 20), (40, 9)])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_positions(sizes, dtype):
    rng = np.random.default_rng(sum(sizes))
    known, ids = (rng.permutation(45)[:n] for n in sizes)
    found = positions(tf.constant(known, dtype), tf.constant(ids, dtype))
    places = {value: i for i, value in enumerate(known)}
    np.testing.assert_array_equal(found, [places.get(value, -1) for value in ids])


@pytest.mark.parametrize("known", [[], [7], [7, 3, 9], [5, 1, 7, 3, 9]])
def test_missing_first(known):
    """Each given id stays itself; those with a row come last, with the position of theirs."""
    given = tf.constant([3, 7, 7, 1, 5, 3], tf.int64)
    ids, place = tf.unique(given)
    found = positions(tf.constant(known, tf.int64), ids)
    ids, place, number, position = missing_first(ids, place, found)
    np.testing.assert_array_equal(tf.gather(ids, place), given)
    ids = ids.numpy().tolist()
    assert ids[: int(number)] == [value for value in [3, 7, 1, 5] if value not in known]
    assert [known[i] for i in position.numpy()] == ids[int(number) :]
    assert len(ids) == 4
