"""The digits example: a batch of 128 gives the same weights however many workers share it."""

import dataclasses

import keras
import numpy as np

import tf_sparse_strategy as tss
from examples.digits import train
from tests.multiprocess.digits_runs import DENSE


def test_workers_train_as_one_process(comm):
    """LARS, its norms divided over the workers, statistics frozen: without the strategy the same weights."""
    rows = train.order(0, range(1), count=1347, batch=128)
    data = train.batches(rows, train.load(0)[0], 8, 128)

    def weights(model):
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
        model.fit(data, steps_per_epoch=4, shuffle=False, verbose=0)
        return model.get_weights()

    config = dataclasses.replace(DENSE, learning_rate=1.0)
    model = train.make_model(config, tss.SparseStrategy("torus2d"), steps=8)
    alone = train.build_model()
    optimizer = train.make_optimizer(dataclasses.replace(config, pto="off"), steps=8)
    alone.compile(optimizer, keras.losses.CategoricalCrossentropy(True, config.label_smoothing))
    initial = model.get_weights()
    alone.set_weights(initial)
    expected = weights(alone)
    for one, two in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)
    assert max(np.abs(e - i).max() for e, i in zip(expected, initial, strict=True)) > 1e-3
