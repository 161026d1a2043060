"""Divided tables in programs as users write them: read early, frozen for a while, parts of other models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle

VOCABULARY, WIDTH, LENGTH, ROWS, BATCH = 20, 4, 3, 24, 8
pytestmark = pytest.mark.usefixtures("partners")


def batches():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY // 2, size=[ROWS, LENGTH]).astype("int32")
    targets = rng.normal(size=[ROWS, 1]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(BATCH)


class Late(keras.Model):
    """Built by the shapes of what it is given."""

    def __init__(self, looks=lambda table, rows: rows):
        super().__init__()
        self.table, self.out = tss.layers.ShardedEmbedding(VOCABULARY, WIDTH), keras.layers.Dense(1)
        self.looks = looks

    def call(self, ids):
        return self.out(tf.reduce_mean(self.looks(self.table, self.table(ids)), axis=1))


def test_a_table_that_is_read_before_it_is_made(strategy):
    """What was drawn for the reading would be kept, and put into the optimizer's first slot."""

    def trained(looks):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = Late(looks)
            model.compile(keras.optimizers.Adam(0.1), "mse")
        history = model.fit(batches(), epochs=2, verbose=0)
        slots = {f"slot {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
        return oracle.outcome(model, history, **slots)

    def read(table, rows):
        return rows + 0 * tf.stop_gradient(tf.reduce_sum(table.weights[0]))

    oracle.assert_same(trained(read), trained(lambda table, rows: rows), rtol=0, atol=0)


def test_tied_weights_of_a_model_that_is_built_late_are_refused(strategy):
    with strategy.scope():
        model = Late(lambda table, rows: tf.matmul(rows, table.embeddings, transpose_b=True))
        model.compile("sgd", "mse")
    with pytest.raises(Exception, match="its columns are on 2 workers"):
        model.fit(batches(), verbose=0)


class Within(keras.layers.Layer):
    """A tf.function of its own around a table."""

    def __init__(self):
        super().__init__()
        self.table = tss.layers.ShardedEmbedding(VOCABULARY, WIDTH, embeddings_initializer="ones")

    def build(self, shape):
        self.table.build(shape)

    @tf.function
    def call(self, ids):
        return tf.reduce_mean(self.table(ids), axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], WIDTH)


def test_a_table_that_is_thawed_is_trained(comm, strategy):
    """Also one that a function looks up which was traced while the table was frozen."""

    def run(scope):
        with scope():
            inputs = keras.Input([LENGTH], dtype="int32")
            pooled = Within()
            model = oracle.start(keras.Model(inputs, keras.layers.Dense(1)(pooled(inputs))))
            for trainable in (False, True):
                pooled.trainable = trainable
                model.compile(keras.optimizers.SGD(0.5), "mse")
                history = model.fit(batches(), verbose=0)
        assert np.abs(model.get_weights()[0] - 1).max() > 0.01
        return oracle.outcome(model, history)

    oracle.compare(comm, strategy, run)


def test_a_model_from_outside_the_scope_of_layers_from_inside(comm, strategy, topology, shared_tmp):
    """Written by the first worker alone, whole."""
    with strategy.scope():
        inputs = keras.Input([LENGTH], dtype="int32")
        rows = tss.layers.ShardedEmbedding(VOCABULARY, WIDTH)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    encoder = keras.Model(model.input, rows)
    encoder.save_weights(shared_tmp / "encoder.weights.h5")
    encoder.export(shared_tmp / "encoder", verbose=False)
    [whole] = encoder.get_weights()
    comm.barrier()
    if topology.rank == 0:
        plain = keras.Sequential([keras.Input([LENGTH]), keras.layers.Embedding(VOCABULARY, WIDTH)])
        plain.load_weights(shared_tmp / "encoder.weights.h5")
        np.testing.assert_array_equal(plain.get_weights()[0], whole)
        with strategy.extended.alone():
            served = tf.saved_model.load(str(shared_tmp / "encoder"))
        ids = tf.constant([[1, 2, 3]], tf.int32)
        np.testing.assert_array_equal(served.serve(ids), whole[ids.numpy()])
    comm.barrier()
