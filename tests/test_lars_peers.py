"""LARS and LAMB against other libraries' own: tf-models-official's, run here, and optax's histories."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lars_pto
from benchmarks.pto import peers
from lars_pto import legacy_keras
from tests import lars_reference as reference
from tests import lars_steps as steps

OPTAX = pathlib.Path(__file__).with_name("optax_histories.json")
EXCLUSIONS = dict(exclude_vectors=False, weight_decay_exclusions=steps.EXCLUDED)
PACKAGES = {"keras3": lars_pto, "tf_keras": legacy_keras}


def schedule(framework):
    """The learning rates of lars_steps.py, by step."""
    base = {"keras3": keras, "tf_keras": tf_keras}[framework].optimizers.schedules.LearningRateSchedule

    class Rates(base):
        def __call__(self, step):
            return tf.gather(tf.constant(steps.RATES), tf.cast(step, tf.int32))

        def get_config(self):
            return {}

    return Rates()


def history(optimizer, framework) -> list[dict[str, np.ndarray]]:
    """Each layer's weights after each step."""
    make = keras.Variable if framework == "keras3" else tf.Variable
    variables = {name: make(np.float32(w), name=name) for name, w in steps.weights().items()}
    found = []
    for gradients in steps.gradients():
        given = [(tf.constant(g, tf.float32), variables[name]) for name, g in gradients.items()]
        optimizer.apply_gradients(given)
        found.append({name: np.array(v) for name, v in variables.items()})
    return found


def assert_same(found, expected, tolerance=2e-5):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name in steps.SHAPES:
            np.testing.assert_allclose(
                one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=f"{name}, step {number}"
            )


def ours(framework, name, **settings):
    make = getattr(PACKAGES[framework], name)
    return history(make(schedule(framework), **EXCLUSIONS, **settings), framework)


@pytest.mark.parametrize("framework", PACKAGES)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("variant", "classic"), [("joint_norm", True), ("after_momentum", False)])
def test_tf_models_officials_lars(framework, variant, classic, nesterov):
    theirs = peers.official("lars").LARS(
        schedule("tf_keras"),
        momentum=steps.LARS["momentum"],
        weight_decay_rate=steps.LARS["weight_decay"],
        eeta=steps.LARS["trust_coefficient"],
        classic_momentum=classic,
        nesterov=nesterov,
        exclude_from_weight_decay=steps.EXCLUDED,
    )
    found = ours(framework, "LARS", variant=variant, nesterov=nesterov, **steps.LARS)
    assert_same(found, history(theirs, "tf_keras"))


@pytest.mark.parametrize("framework", PACKAGES)
def test_tf_models_officials_lamb(framework):
    settings = dict(steps.LAMB)
    theirs = peers.official("lamb").LAMB(
        schedule("tf_keras"),
        weight_decay_rate=settings.pop("weight_decay"),
        exclude_from_weight_decay=steps.EXCLUDED,
        **settings,
    )
    assert_same(ours(framework, "LAMB", **steps.LAMB), history(theirs, "tf_keras"))


@pytest.mark.parametrize("framework", PACKAGES)
@pytest.mark.parametrize("case", ["lars", "lars, nesterov", "lamb"])
def test_optax(framework, case):
    """Its LARS is "joint_norm"."""
    expected = json.loads(OPTAX.read_text())[case]
    if case == "lamb":
        found = ours(framework, "LAMB", **steps.LAMB)
    else:
        nesterov = case.endswith("nesterov")
        found = ours(framework, "LARS", variant="joint_norm", nesterov=nesterov, **steps.LARS)
    assert_same(found, expected)


def test_conventions_differ():
    """Negative control: six steps tell one convention from the other."""
    expected = json.loads(OPTAX.read_text())["lars"]
    for variant in ("classic", "after_momentum", "larc"):
        with pytest.raises(AssertionError):
            assert_same(ours("keras3", "LARS", variant=variant, **steps.LARS), expected, tolerance=1e-3)


@pytest.mark.parametrize("framework", PACKAGES)
def test_nvidias_lamb_clips_all_layers_by_one_norm(framework):
    limit, clipped = 1.0, []
    for gradients in steps.gradients():
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        clipped.append({name: g * min(1.0, limit / norm) for name, g in gradients.items()})
    settings = dict(steps.LAMB)
    decay = settings.pop("weight_decay")
    layers = {}
    for name, w in steps.weights().items():
        excluded = steps.is_excluded(name)
        layers[name] = reference.lamb(
            w,
            [gradients[name] for gradients in clipped],
            steps.RATES,
            decay=0.0 if excluded else decay,
            adapts=not excluded,
            **settings,
        )
    expected = [{name: layers[name][i] for name in layers} for i in range(len(steps.RATES))]
    assert_same(ours(framework, "LAMB", global_clipnorm=limit, **steps.LAMB), expected)
