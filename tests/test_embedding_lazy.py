"""Optimizers that touch only the rows with a gradient, in both Kerases, against the rule row by row."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy import legacy_keras
from tf_sparse_strategy.optimizers import Adagrad, LazyAdam

L, D = 7, 4
TABLE = np.random.default_rng(0).normal(size=(L, D)).astype("float32")


@pytest.fixture(params=["alone", "strategy"])
def scope(request):
    """Without a strategy, and under one of one worker."""
    strategy = tss.SparseStrategy() if request.param == "strategy" else tf.distribute.get_strategy()
    with strategy.scope():
        yield request.param


def rows_of_adam(gradients, lr=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """NumPy: after each step's {row: gradient}, the table; rows without one stay."""
    w, m, v = TABLE.astype("float64"), np.zeros((L, D)), np.zeros((L, D))
    for step, rows in enumerate(gradients, start=1):
        for row, g in rows.items():
            m[row] = beta_1 * m[row] + (1 - beta_1) * g
            v[row] = beta_2 * v[row] + (1 - beta_2) * g**2
            alpha = lr * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
            w[row] -= alpha * m[row] / (np.sqrt(v[row]) + epsilon)
    return w


def rows_of_adagrad(gradients, lr=0.1, start=0.1, epsilon=1e-7):
    w, a = TABLE.astype("float64"), np.full((L, D), start)
    for rows in gradients:
        for row, g in rows.items():
            a[row] += g**2
            w[row] -= lr * g / np.sqrt(a[row] + epsilon)
    return w


@pytest.mark.parametrize("optimizer, rule", [(LazyAdam, rows_of_adam), (Adagrad, rows_of_adagrad)])
def test_lazy_optimizers_are_row_local(scope, optimizer, rule):
    rng = np.random.default_rng(1)
    table, made, expected = keras.Variable(TABLE), optimizer(0.1), []
    for ids in ([1, 3, 1], [5], [3, 3, 0], [1]):
        values = rng.normal(size=(len(ids), D)).astype("float32")
        rows = {}
        for row, g in zip(ids, values.astype("float64"), strict=True):
            rows[row] = rows.get(row, 0) + g
        expected.append(rows)
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([L, D]))
        tf.distribute.get_strategy().run(lambda g=gradient: made.apply([g], [table]))
    np.testing.assert_allclose(table.numpy(), rule(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [LazyAdam, Adagrad])
def test_a_step_reads_rows_not_tables(scope, optimizer):
    """A table's value, once it is read, is a copy of hundreds of millions of elements."""
    strategy = tf.distribute.get_strategy()
    layer, made = tss.layers.ShardedEmbedding(L, D), optimizer(0.1)
    layer.build()
    made.build(layer.trainable_variables)

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2)
        made.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    step = tf.function(lambda ids: strategy.run(replica, args=(ids,)))
    graph = step.get_concrete_function(tf.constant([1, 2])).graph
    assert [op for op in graph.get_operations() if "Scatter" in op.type]
    assert not [op for op in graph.get_operations() if any(o.shape == [L, D] for o in op.outputs)]


CLIPPED = {
    "clipnorm": lambda g: g * 0.5 / max(0.5, np.linalg.norm(g)),
    "global_clipnorm": lambda g: g * 0.5 / max(0.5, np.linalg.norm(g)),
    "clipvalue": lambda g: np.clip(g, -0.5, 0.5),
}


@pytest.mark.parametrize("kind, rule", [(LazyAdam, rows_of_adam), (Adagrad, rows_of_adagrad)])
@pytest.mark.parametrize("option", CLIPPED)
def test_lazy_optimizers_clip_rows(scope, option, kind, rule):
    """Each id once; in the last step row 1 rests."""
    rng = np.random.default_rng(1)
    table, made, expected = keras.Variable(TABLE), kind(0.1, **{option: 0.5}), []
    for ids in ([1, 3, 1], [5, 1], [3, 3, 0]):
        values = rng.normal(size=(len(ids), D)).astype("float32")
        dense = np.zeros((L, D))
        np.add.at(dense, ids, values)
        expected.append({row: CLIPPED[option](dense)[row] for row in set(ids)})
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([L, D]))
        tf.distribute.get_strategy().run(lambda g=gradient: made.apply([g], [table]))
    np.testing.assert_allclose(table.numpy(), rule(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option", CLIPPED)
def test_a_limit_below_0_is_none(option):
    """As to Keras, of whole tables and of divided ones."""
    strategy, gradient = tss.SparseStrategy(), tf.IndexedSlices(tf.ones([1, D]), [1], tf.constant([L, D]))
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(L, D, embeddings_initializer="zeros")
        layer.build()
        made = keras.optimizers.SGD(1.0, **{option: -1.0})
        strategy.run(lambda: made.apply([gradient], layer.trainable_variables))
    np.testing.assert_array_equal(layer.get_weights()[0][1], -np.ones(D))


@pytest.mark.parametrize("option", CLIPPED)
def test_lazy_adam_of_tf_keras(scope, option):
    rng = np.random.default_rng(1)
    table, made, expected = tf.Variable(TABLE), legacy_keras.LazyAdam(0.1, **{option: 0.5}), []
    for ids in ([1, 3, 1], [5, 1], [3, 3, 0]):
        values = rng.normal(size=(len(ids), D)).astype("float32")
        dense = np.zeros((L, D))
        np.add.at(dense, ids, values)
        expected.append({row: CLIPPED[option](dense)[row] for row in set(ids)})
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([L, D]))
        tf.distribute.get_strategy().run(lambda g=gradient: made.apply_gradients([(g, table)]))
    np.testing.assert_allclose(table.numpy(), rows_of_adam(expected), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="rows without a gradient would have to move"):
        legacy_keras.LazyAdam(amsgrad=True)


def test_lazy_adam_is_adam_on_dense_gradients():
    one, other = keras.Variable(TABLE), keras.Variable(TABLE)
    for _ in range(3):
        LazyAdam(0.1).apply([tf.ones([L, D])], [one])
        keras.optimizers.Adam(0.1).apply([tf.ones([L, D])], [other])
    np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(("kind", "option"), [(LazyAdam, {}), (LazyAdam, {"clipnorm": 0.5}), (Adagrad, {})])
def test_under_xla(kind, option):
    """Which pads what has as many rows as there are distinct ids; row 0 must rest, and row 1 move once."""
    one, other = keras.Variable(TABLE), keras.Variable(TABLE)
    plain, compiled = kind(0.1, **option), kind(0.1, **option)

    @tf.function(jit_compile=True)
    def step(values, ids):
        compiled.apply([tf.IndexedSlices(values, ids, tf.constant([L, D]))], [other])

    compiled.build([other])
    for ids in ([1, 3, 1, 1], [5, 5, 2, 3], [0, 0, 3, 0], [0, 3, 3, 3]):
        values = tf.constant(np.random.default_rng(1).normal(size=(4, D)).astype("float32"))
        plain.apply([tf.IndexedSlices(values, tf.constant(ids), tf.constant([L, D]))], [one])
        step(values, tf.constant(ids))
        if 0 not in ids:
            assert (other.numpy()[[0, 4, 6]] == TABLE[[0, 4, 6]]).all()
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(plain.variables[2:], compiled.variables[2:], strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [tf.distribute.get_strategy, tss.SparseStrategy])
def test_a_model_of_plain_layers_trained_lazily_under_xla(make):
    """As Keras compiles it by default: the padding of a step is no row of it."""
    ids, weights = np.array([[1, 1, 2], [3, 1, 3]]), []
    for jit_compile in (True, False):
        with make().scope():
            words = keras.Input([3], dtype="int32")
            rows = keras.layers.Embedding(L, D, weights=TABLE)(words)
            out = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(rows))
            model = keras.Model(words, out)
            model.compile(LazyAdam(0.1), loss="mse", jit_compile=jit_compile)
        model.fit(np.concatenate([ids, ids + 2]), np.ones([4, 1]), batch_size=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "option", [{"amsgrad": True}, {"weight_decay": 0.1}, {"gradient_accumulation_steps": 2}]
)
def test_what_lazy_adam_refuses(option):
    with pytest.raises(ValueError, match="rows without a gradient would have to move"):
        LazyAdam(**option)
    assert LazyAdam.from_config(LazyAdam(0.3).get_config()).get_config() == LazyAdam(0.3).get_config()
