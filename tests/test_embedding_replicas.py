"""ShardedEmbedding and LazyAdam where TensorFlow's own strategy has two replicas in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.layers import ShardedEmbedding
from tf_sparse_strategy.optimizers import Adagrad, LazyAdam

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
IDS = np.random.default_rng(0).integers(0, 9, (24, 3))


def trained(strategy, kind, optimizer):
    """Weights after some steps in which the replicas have other rows."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        table = kind(9, 4, embeddings_initializer=keras.initializers.RandomNormal(seed=2))
        model = keras.Sequential([keras.Input([3], dtype="int32"), table, keras.layers.Flatten()])
        model.compile(optimizer(0.1), "mse", jit_compile=False)
    model.fit(IDS, np.ones([len(IDS), 12]), batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()[0]


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, Adagrad, LazyAdam])
def test_same_as_one_replica(optimizer):
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    one = trained(tf.distribute.get_strategy(), keras.layers.Embedding, optimizer)
    np.testing.assert_allclose(trained(two, ShardedEmbedding, optimizer), one, rtol=1e-5, atol=1e-6)
