"""Each batch with the next one, in the order in which they are read."""

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.input import shard_batches
from tf_sparse_strategy.scheduling.look_ahead import look_ahead


def _elements(dataset):
    return [
        (ahead.data, np.asarray(ahead.following).tolist())
        for ahead in look_ahead(dataset)
    ]


def test_each_batch_is_paired_with_the_next():
    """Through a shuffle, into the next epoch of a repeated dataset, up to the end."""
    x = np.arange(7)
    dataset = tf.data.Dataset.from_tensor_slices((x, x * 10)).shuffle(7).batch(2).repeat(3)
    for _ in range(2):
        pairs = _elements(dataset)
        assert len(pairs) == 12
        for (data, following), ((inputs, _), _) in zip(pairs, pairs[1:], strict=False):
            assert following == inputs.numpy().tolist()
            np.testing.assert_array_equal(data[1], data[0] * 10)
        assert pairs[-1][1] == []
        assert sorted(np.concatenate([data[0] for data, _ in pairs])) == sorted([*x] * 3)


def test_nothing_has_no_pairs():
    assert _elements(tf.data.Dataset.from_tensors(1).take(0).batch(1)) == []


def test_structures():
    x = {"words": tf.ragged.constant([[1, 2], [3], []]), "tags": tf.sparse.eye(3)}
    pairs = list(look_ahead(tf.data.Dataset.from_tensor_slices(x).batch(2)))
    assert pairs[0].following["words"].to_list() == [[]]
    np.testing.assert_array_equal(tf.sparse.to_dense(pairs[0].following["tags"]), [[0, 0, 1]])
    assert pairs[1].following["words"].to_list() == []
    assert pairs[1].following["tags"].shape == (0, 3)


def test_an_input_that_a_generator_leaves_out():
    """As Keras has it, for an Input that is optional."""
    nothing, spec = tf.experimental.Optional.empty(None), (tf.TensorSpec([2]), tf.OptionalSpec(None))
    dataset = tf.data.Dataset.from_tensor_slices(np.ones([2, 2], "float32")).map(lambda x: (x, nothing))
    assert dataset.element_spec == spec
    first, second = look_ahead(dataset)
    assert not second.data[1].has_value() and first.following.shape == second.data[0].shape


def test_tagged_batches():
    dataset = tf.data.Dataset.range(5).batch(4)
    for worker, (ids, last) in enumerate((([0, 1], [4]), ([2, 3], []))):  # the second has no row of it
        part = shard_batches(dataset, 2, worker, tagged=True)
        first, second = look_ahead(part)
        assert (int(first.rows), first.data.data.numpy().tolist()) == (2, ids)
        assert first.data.following.numpy().tolist() == last
        assert (int(second.rows), second.data.following.numpy().tolist()) == (1 - worker, [])
