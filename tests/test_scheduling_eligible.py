"""Which tables may have delayed rows."""

import keras
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy import keras_callers
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.scheduling import eligible

YES = [keras.optimizers.SGD, tss.optimizers.LazyAdam, tss.optimizers.Adagrad]
NO = [
    (lambda: keras.optimizers.Adam(0.1), "from its own gradient alone"),
    (lambda: keras.optimizers.Adagrad(0.1), "from its own gradient alone"),
    (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "from its own gradient alone"),
    (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "momentum=0.9"),
    (lambda: keras.optimizers.SGD(0.1, weight_decay=0.1), "weight_decay=0.1"),
    (lambda: keras.optimizers.SGD(0.1, use_ema=True), "use_ema=True"),
    (lambda: keras.optimizers.SGD(0.1, clipvalue=1.0), "clipvalue=1.0"),
    (lambda: tss.optimizers.LazyAdam(0.1, clipnorm=1.0), "clipnorm=1.0"),
    (lambda: tss.optimizers.LazyAdam(0.1, global_clipnorm=1.0), "global_clipnorm=1.0"),
    (lambda: keras.optimizers.SGD(0.1, loss_scale_factor=2.0), "loss_scale_factor=2.0"),
    (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "gradient_accumulation_steps=2"),
    (type("Own", (keras.optimizers.SGD,), {}), "Own is not known"),
]


@pytest.mark.parametrize("kind", YES, ids=lambda kind: kind.__name__)
def test_optimizers_that_update_rows(kind):
    optimizer = kind(0.1)
    assert "not built" in eligible.optimizer_reason(optimizer)
    optimizer.build([keras.Variable(tf.zeros([2, 2]))])
    assert eligible.optimizer_reason(optimizer) is None


@pytest.mark.parametrize(("make", "reason"), NO, ids=[reason for _, reason in NO])
def test_other_optimizers(make, reason):
    optimizer = make()
    optimizer.build([keras.Variable(tf.zeros([2, 2]))])
    assert reason in eligible.optimizer_reason(optimizer)


def test_ids_of_all_kinds():
    ragged = tf.ragged.constant([[1, 5], [], [7]])
    for ids in (ragged, ragged.to_sparse(), tf.constant([[1], [5], [7]])):
        assert eligible.flat(ids).numpy().tolist() == [1, 5, 7]


def lookup(ids, table):
    return keras.layers.Flatten()(table(ids))


def directly(ids, table):
    return lookup(ids, table)


def computed(ids, table):
    return lookup(9 - ids, table)


def twice(ids, table):
    return lookup(ids, table) + lookup(ids, table)


def weighted(ids, table):
    return keras.layers.Flatten()(table(ids, weights=keras.ops.cast(ids, "float32")))


def in_a_model(ids, table):
    return keras.layers.Flatten()(keras.Sequential([table])(ids))


def in_models(ids, table):
    """Two deep, by name, beside another input, behind a layer of each."""
    inner = {name: keras.Input((3,), name=name) for name in ("ids", "others")}
    rows = keras.Model(inner, in_a_model(8 - inner["ids"], table) + inner["others"][:, :1])
    return rows({"ids": 9 - ids, "others": ids})


def in_a_model_by_name(ids, table):
    return keras.layers.Flatten()(keras.Sequential([table])(inputs=ids))


def in_a_model_twice(ids, table):
    rows = keras.Sequential([table])
    return keras.layers.Flatten()(rows(ids) + rows(9 - ids))


class Own(keras.layers.Layer):
    """A layer that is no model."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, ids):
        return self.table(ids)


def in_a_layer(ids, table):
    return keras.layers.Flatten()(Own(table)(ids))


def behind_variables(ids, table):
    return lookup(keras.ops.cast(keras.layers.BatchNormalization()(ids), "int32"), table)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (directly, None),
        (computed, None),
        (twice, "more than once"),
        (weighted, "weighted"),
        (in_a_model, None),
        (in_a_model_by_name, None),
        (in_models, None),
        (in_a_model_twice, "more than once"),
        (in_a_layer, "not computed from the inputs"),
        (behind_variables, "have variables"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_ids_of_a_layer(build, reason):
    inputs, table = keras.Input((3,)), tss.layers.ShardedEmbedding(10, 2, combiner="sum")
    model = keras.Model(inputs, build(inputs, table))
    found, why = eligible.ids_of(model, table)
    assert why is None if reason is None else reason in why
    if why is None:
        ids = keras.Model(inputs, found)(tf.constant([[4.0, 5.0, 6.0]]))
        expected = {computed: [5, 4, 3], in_models: [3, 4, 5]}.get(build, [4, 5, 6])  # 8 - (9 - x)
        assert ids.numpy().tolist() == [expected]


@pytest.mark.parametrize("build", [False, True])
def test_tables_of_a_sequential_model(monkeypatch, build):
    with tss.SparseStrategy().scope():
        layers = [tss.layers.ShardedEmbedding(10, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([3], dtype="int32"), *layers])
        model.compile(tss.optimizers.LazyAdam(), "mse")
        model.optimizer.build(model.trainable_variables)
    if build:
        model(tf.constant([[1, 2, 3]]))
    monkeypatch.setattr(slices, "divided", slices.of)  # as if there were other workers
    tables, ids_of, left_out = eligible.tables_of(model)
    assert len(tables) == 1 and not left_out
    assert tf.nest.flatten(ids_of(tf.constant([[1, 2, 3]])))[0].numpy().tolist() == [[1, 2, 3]]


def test_whose_step_it_is():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = keras.Sequential()
    assert keras_callers.trained_model(model.train_step) is model
    assert keras_callers.trained_model(Own().train_step) is None
    assert keras_callers.trained_model(lambda data: None) is None


def test_the_option_is_a_bool():
    with pytest.raises(TypeError, match="delay_rows=1 must be True or False"):
        tss.SparseStrategy(delay_rows=1)
