"""What LARS and LAMB of both Kerases can be told, and told later."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lars_pto
from lars_pto import legacy_keras

KINDS = [lars_pto.LARS, lars_pto.LAMB, legacy_keras.LARS, legacy_keras.LAMB]


@pytest.mark.parametrize("bounds", [(1,), (0, 1, 2), 0.5, (2, 1), (-1, 1), ()])
@pytest.mark.parametrize("kind", [lars_pto.LARS, legacy_keras.LARS])
def test_bounds_that_are_none_are_refused(kind, bounds):
    with pytest.raises(ValueError, match="ratio_bounds=.*; pass \\(low, high\\)"):
        kind(1.0, ratio_bounds=bounds)


@pytest.mark.parametrize("kind", KINDS)
def test_no_patterns(kind):
    kept = kind(1.0, weight_decay_exclusions=None).get_config()
    assert kept["weight_decay_exclusions"] == []


@pytest.mark.parametrize("kind", [lars_pto.LARS, lars_pto.LAMB])
def test_what_is_left_out_of_the_decay_may_be_said_when_it_is_built(kind):
    """As of Keras's own, of an optimizer that has been loaded."""
    optimizer = kind(0.1, weight_decay=0.5)
    variables = [keras.Variable([[3.0, 4.0]], name=name) for name in ("kernel", "table")]
    optimizer.build(variables)
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    optimizer.apply([tf.zeros([1, 2])] * 2, variables)
    kernel, table = (variable.numpy() for variable in variables)
    np.testing.assert_array_equal(kernel, [[3.0, 4.0]])
    assert (table < [[3.0, 4.0]]).all()


@pytest.mark.parametrize("wrong", ["bias", ["bias", "*"], [3], 3])
@pytest.mark.parametrize("argument", ["weight_decay_exclusions", "adaptation_exclusions"])
@pytest.mark.parametrize("kind", KINDS)
def test_patterns_that_are_none_are_refused(kind, argument, wrong):
    with pytest.raises(ValueError, match=argument):
        kind(1.0, **{argument: wrong})


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_decay_that_is_changed_counts(kind, is_built):
    results = []
    for given, counts in ((0.5, 0.0), (0.0, 0.0), (0.5, 0.5)):
        optimizer = kind(0.1, weight_decay=given)
        variable = tf.Variable([[3.0, 4.0]], name="kernel")
        if is_built:
            optimizer.build([variable])
        optimizer.weight_decay = counts
        optimizer.apply_gradients([(tf.constant([[1.0, -2.0]]), variable)])
        results.append(variable.numpy())
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != results[2]).any()


@pytest.mark.parametrize("kind", [legacy_keras.LARS, legacy_keras.LAMB])
def test_a_variable_it_was_not_built_on_is_named(kind):
    optimizer, gradient = kind(0.1), tf.ones([2])
    optimizer.apply_gradients([(gradient, tf.Variable([1.0, 2.0]))])
    with pytest.raises(KeyError, match="cannot recognize variable late"):
        optimizer.apply_gradients([(gradient, tf.Variable([1.0, 2.0], name="late"))])


@pytest.mark.parametrize("framework", [keras, tf_keras])
def test_biases_of_any_rank_move_by_the_rate_alone(framework):
    """Those of attention heads and of GRUs are no vectors."""
    kind = lars_pto.LARS if framework is keras else legacy_keras.LARS
    x = framework.layers.Input([4, 6])
    y = framework.layers.MultiHeadAttention(2, 3)(x, x)
    model = framework.Model(x, framework.layers.GRU(2)(y))
    optimizer = kind(1.0, weight_decay=0.1)
    optimizer.build(model.trainable_variables)
    treated = {
        getattr(v, "path", v.name): any(treatment)
        for v, treatment in zip(model.trainable_variables, optimizer._treatments, strict=True)
    }
    assert len(treated) == 11
    biases = {name for name in treated if "bias" in name}
    assert {name for name, is_treated in treated.items() if not is_treated} == biases
