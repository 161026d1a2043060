"""Combined rows of divided tables: trained through `fit` as the formula over a whole table is."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import (
    BATCH,
    ROWS,
    VOCABULARY,
    dense_gradients,
    start,
    tokens,
)
from tests.thorough import thorough

WIDTH, LENGTH = 5, 4


def padded():
    """int32 [ROWS, LENGTH]; 0 where there is no id; the first and last rows, and others, have none at all."""
    ids = tokens(ROWS, LENGTH)
    ids[::5] = 0
    ids[-1] = 0
    return ids


def factors(ids):
    """A weight for each id, 0 where there is none."""
    return tf.where(ids > 0, 0.5 + tf.cast(ids % 3, tf.float32), 0.0)


def by_formula(table, ids, combiner, weighted):
    weights = factors(ids) if weighted else tf.cast(ids > 0, tf.float32)
    total = tf.reduce_sum(table(ids) * weights[..., None], axis=1)
    if combiner == "sum":
        return total
    of = {"mean": weights, "sqrtn": tf.square(weights)}[combiner]
    divisor = tf.reduce_sum(of, axis=1, keepdims=True)
    return tf.math.divide_no_nan(total, divisor if combiner == "mean" else tf.sqrt(divisor))


def by_layer(table, ids, kind, weighted):
    there, weights = ids > 0, factors(ids)
    if kind == "dense":
        return table(ids, weights=weights if weighted else tf.cast(there, tf.float32))
    ids, weights = tf.ragged.boolean_mask(ids, there), tf.ragged.boolean_mask(weights, there)
    if kind == "sparse":
        ids, weights = ids.to_sparse(), weights.to_sparse()
    return table(ids, weights=weights if weighted else None)


class Model(keras.Model):
    def __init__(self, table, rows):
        super().__init__()
        self.table, self.rows, self.out = table, rows, keras.layers.Dense(1)

    def call(self, ids):
        return self.out(tf.ensure_shape(self.rows(self.table, ids), [None, WIDTH]))


CASES = [
    ("sum", "dense", True),
    ("mean", "ragged", True),
    ("sqrtn", "sparse", False),
    pytest.param("sum", "ragged", False, marks=thorough),
    pytest.param("mean", "sparse", True, marks=thorough),
    pytest.param("sqrtn", "dense", False, marks=thorough),
]


@pytest.mark.parametrize(("combiner", "kind", "weighted"), CASES)
def test_training_is_that_of_the_formula(comm, strategy, combiner, kind, weighted):
    def run(scope):
        with scope():
            optimizer = keras.optimizers.Adam(0.05)
            if scope is contextlib.nullcontext:
                optimizer = dense_gradients(optimizer)
                table = keras.layers.Embedding(VOCABULARY, WIDTH)
                model = Model(table, lambda table, ids: by_formula(table, ids, combiner, weighted))
            else:
                table = tss.layers.ShardedEmbedding(VOCABULARY, WIDTH, combiner=combiner)
                model = Model(table, lambda table, ids: by_layer(table, ids, kind, weighted))
            model(tf.ones([1, LENGTH], tf.int32))
            start(model)
            model.compile(optimizer=optimizer, loss="mse")
        targets = np.random.default_rng(1).normal(size=(ROWS, 1)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((padded(), targets)).batch(BATCH)
        history = model.fit(data, epochs=2, verbose=0)
        weights = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
        return {**weights, **{f"log {k}": v for k, v in history.history.items()}}

    oracle.compare(comm, strategy, run)
