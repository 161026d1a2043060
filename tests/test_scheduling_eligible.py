"""Which tables may have delayed rows."""

import keras
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
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


def test_the_option_is_a_bool():
    with pytest.raises(TypeError, match="delay_rows=1 must be True or False"):
        tss.SparseStrategy(delay_rows=1)
