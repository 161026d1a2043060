"""Which tables may have delayed rows."""

import keras
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy import keras_callers
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


def behind_variables(ids, table):
    return lookup(keras.ops.cast(keras.layers.BatchNormalization()(ids), "int32"), table)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (directly, None),
        (computed, None),
        (twice, "more than once"),
        (weighted, "weighted"),
        (in_a_model, "not computed from the inputs"),
        (behind_variables, "have variables"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_ids_of_a_layer(build, reason):
    inputs, table = keras.Input((3,)), tss.layers.ShardedEmbedding(10, 2, combiner="sum")
    model = keras.Model(inputs, build(inputs, table))
    layer = table if table in model.layers else None
    _, found = eligible.ids_of(model, layer)
    assert found is None if reason is None else reason in found


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
