"""`LarsRule` and `LambRule` against hand-worked tables and a float64 model of the formulas."""

import numpy as np
import pytest
import tensorflow as tf

import lars_pto
from lars_pto.lamb_rule import LambRule
from lars_pto.lars_rule import VARIANTS, LarsRule
from lars_pto.layerwise import Exclusions
from lars_pto.momentum_step import MomentumStep
from lars_pto.trust_ratio import trust_ratio
from tests import lars_reference as reference


def run(rule, w, gradients, rates, decay, adapts=True):
    """The weights after each step of `rule`, with the norms computed by NumPy in float64."""
    w = tf.constant(w, tf.float64)
    slots = tuple(tf.zeros_like(w) for _ in rule.slot_names)
    history = []
    for step, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = tf.constant(g, tf.float64)
        begun = rule.begin(w, g, slots, decay, step)
        sums = None
        if adapts:
            measured = begun.measured + begun.measured_decay * w
            sums = tf.constant([np.sum(w.numpy() ** 2), np.sum(measured.numpy() ** 2)])
        change = rule.finish(w, g, begun, sums, rate, decay)
        w, *slots = change.values(w, *slots) if isinstance(change, MomentumStep) else change
        history.append(w.numpy())
    return np.array(history)


def lars_rule(variant, eta, momentum, decay, epsilon=0.0, nesterov=False, adapts=True):
    del adapts
    return LarsRule(momentum, eta, epsilon, nesterov, variant)


def lamb_rule(beta_1, beta_2, epsilon, decay, bias_correction=True, adapts=True):
    del adapts
    return LambRule(beta_1, beta_2, epsilon, bias_correction)


@pytest.mark.parametrize(("variant", "options", "rates", "expected"), reference.LARS_TABLE)
def test_lars_agrees_with_the_table(variant, options, rates, expected):
    by_hand = reference.lars(variant, reference.WEIGHTS, reference.GRADIENTS, rates, **options)
    np.testing.assert_allclose(by_hand, expected, rtol=0, atol=6e-10)
    ours = run(
        lars_rule(variant, **options),
        reference.WEIGHTS,
        reference.GRADIENTS,
        rates,
        options["decay"],
        options.get("adapts", True),
    )
    np.testing.assert_allclose(ours, expected, rtol=0, atol=6e-10)


@pytest.mark.parametrize(("options", "expected"), reference.LAMB_TABLE)
def test_lamb_agrees_with_the_table(options, expected):
    weights, gradients, rates = reference.WEIGHTS, reference.GRADIENTS, reference.LAMB_RATES
    by_hand = reference.lamb(weights, gradients, rates, **options)
    np.testing.assert_allclose(by_hand, expected, rtol=0, atol=6e-10)
    adapts = options.get("adapts", True)
    ours = run(lamb_rule(**options), weights, gradients, rates, options["decay"], adapts)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=6e-10)


def test_the_table_tells_the_conventions_apart():
    """Each row would fail under every other variant (negative control)."""
    for variant, options, rates, expected in reference.LARS_TABLE:
        if not options.get("adapts", True) or options.get("epsilon") == 1e-7:
            continue
        for other in set(VARIANTS) - {variant}:
            got = reference.lars(other, reference.WEIGHTS, reference.GRADIENTS, rates, **options)
            if len(set(rates)) == 1 and {variant, other} == {"classic", "larc"}:
                continue  # one rule as long as the learning rate is constant
            if set(rates) == {1.0} and {variant, other} <= {"classic", "larc", "larc_clip"}:
                continue  # nothing to clip at a learning rate of 1
            assert not np.allclose(got, expected, rtol=0, atol=1e-6), (variant, other)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lars_agrees_with_the_formulas_on_random_layers(variant, nesterov):
    rng = np.random.default_rng(3)
    for shape in [(1,), (7,), (3, 4), (2, 3, 5)]:
        w = rng.normal(size=shape)
        gradients = rng.normal(size=(6, *shape))
        gradients[2] = 0  # a zero gradient in mid-flight
        rates = rng.uniform(0.01, 2, size=6)
        options = dict(
            eta=rng.uniform(0.001, 0.1),
            momentum=rng.uniform(0, 0.99),
            decay=rng.uniform(0, 0.2),
            epsilon=rng.choice([0.0, 1e-3]),
            nesterov=nesterov,
            adapts=bool(rng.integers(4)),
        )
        expected = reference.lars(variant, w, gradients, rates, **options)
        rule = lars_rule(variant, **options)
        ours = run(rule, w, gradients, rates, options["decay"], options["adapts"])
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)


def test_lamb_agrees_with_the_formulas_on_random_layers():
    rng = np.random.default_rng(4)
    for shape in [(1,), (7,), (3, 4), (2, 3, 5)]:
        w, gradients = rng.normal(size=shape), rng.normal(size=(6, *shape))
        rates = rng.uniform(0.01, 2, size=6)
        options = dict(
            beta_1=rng.uniform(0, 0.99),
            beta_2=rng.uniform(0.5, 0.999),
            epsilon=1e-6,
            decay=rng.uniform(0, 0.2),
            bias_correction=bool(rng.integers(2)),
        )
        expected = reference.lamb(w, gradients, rates, **options)
        ours = run(lamb_rule(**options), w, gradients, rates, options["decay"])
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_zero_weights_move_by_the_plain_step(variant):
    ours = run(lars_rule(variant, 0.001, 0.9, 0.1), [0.0, 0.0], [[0.6, 0.8]], [1.0], 0.1)
    np.testing.assert_allclose(ours[0], [-0.6, -0.8], rtol=1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_zero_gradient_leaves_decay_alone(variant):
    [after] = run(lars_rule(variant, 0.001, 0.9, 0.1), [3.0, 4.0], [[0.0, 0.0]], [1.0], 0.1)
    ratio = {"classic": 1, "joint_norm": 0.01, "after_momentum": 0.01}.get(variant, 0)
    np.testing.assert_allclose(after, np.multiply([3.0, 4.0], 1 - 0.1 * ratio), rtol=1e-14)


@pytest.mark.parametrize("rule", [LarsRule(variant=v) for v in VARIANTS] + [LambRule()])
def test_a_nan_reaches_every_entry_of_the_layer(rule):
    [after] = run(rule, [3.0, 4.0], [[np.nan, 0.8]], [1.0], 0.1)
    assert np.isnan(after).all()


def test_bounds_hold_the_ratio_but_not_that_of_a_zero_norm():
    options = dict(momentum=0.0, trust_coefficient=1.0, ratio_bounds=(0.25, 0.5))
    rule = LarsRule(**options)
    for w, g, ratio in [
        ([3.0, 4.0], [1.0, 0.0], 0.5),  # 5
        ([0.3, 0.4], [1.0, 0.0], 0.5),  # 0.5
        ([0.03, 0.04], [1.0, 0.0], 0.25),  # 0.05
        ([0.0, 0.0], [1.0, 0.0], 1.0),
    ]:
        [after] = run(rule, w, [g], [1.0], 0.0)
        np.testing.assert_allclose(after, np.subtract(w, np.multiply(ratio, g)), rtol=1e-14)


def test_a_rate_of_zero_moves_nothing():
    """The first step of a warm-up; "larc_clip" divides by the rate."""
    for variant in VARIANTS:
        [after] = run(lars_rule(variant, 0.001, 0.9, 0.1), [3.0, 4.0], [[0.6, 0.8]], [0.0], 0.1)
        assert after.tolist() == [3.0, 4.0]


def test_classic_is_the_safer_default():
    """With g close to -λw the joint norm vanishes and its ratio explodes; classic's does not."""
    w, g, decay = [3.0, 4.0], [-0.3, -0.4 + 1e-9], 0.1
    joint = run(lars_rule("joint_norm", 0.001, 0.0, decay), w, [g], [1.0], decay)[0] - w
    classic = run(lars_rule("classic", 0.001, 0.0, decay), w, [g], [1.0], decay)[0] - w
    assert np.linalg.norm(joint) > 1e-3 > 1e6 * np.linalg.norm(classic)


def test_trust_ratio_has_no_gradient_trap_and_keeps_the_dtype():
    assert trust_ratio(tf.constant(2.0, tf.float64), tf.constant(4.0, tf.float64)).dtype == tf.float64
    assert float(trust_ratio(tf.constant(2.0), tf.constant(0.0), 7.0, 1.0)) == 1.0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: LarsRule(variant="lars"), "larc_clip"),
        (lambda: LarsRule(momentum=1.0), "below 1"),
        (lambda: lars_pto.LARS(1.0, weight_decay=-1.0), "weight_decay"),
        (lambda: lars_pto.LAMB(weight_decay=float("nan")), "weight_decay"),
        (lambda: LarsRule(trust_coefficient=float("nan")), "trust_coefficient"),
        (lambda: LarsRule(ratio_bounds=(1.0, 0.5)), "low <= high"),
        (lambda: LambRule(beta_2=1.0), "beta_2"),
        (lambda: LambRule(epsilon=-1e-6), "epsilon"),
    ],
)
def test_errors_name_the_argument(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_exclusions():
    exclusions = Exclusions(True, ["embedding"], ["head"])
    assert exclusions.treatment("body/kernel", 2) == (True, True)
    assert exclusions.treatment("body/bias", 1) == (False, False)
    assert exclusions.treatment("attention/query/bias", 2) == (False, False)
    assert exclusions.treatment("gru/gru_cell/bias:0", 2) == (False, False)
    assert exclusions.treatment("attention/relative_bias", 2) == (True, True)
    assert exclusions.treatment("embedding/table", 2) == (False, True)
    assert exclusions.treatment("head/kernel", 2) == (True, False)
    assert Exclusions(False).treatment("body/bias", 1) == (True, True)
