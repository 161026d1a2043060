"""Keras's fit with LARS and LAMB computes over real workers what one process computes."""

import pytest

import lars_pto
from lars_pto import legacy_keras
from tests.multiprocess import oracle
from tests.thorough import thorough_if

PACKAGES = {"keras": lars_pto, "tf_keras": legacy_keras}


def package(keras):
    return PACKAGES[keras.__name__.partition(".")[0]]


@pytest.mark.parametrize("parallel", thorough_if(lambda parallel: parallel == "off", ["on", "off"]))
@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_fit_is_that_of_one_process(comm, keras, strategy, name, parallel):
    """Clipping, EMA, a last batch that does not divide: the whole of Keras around our optimizers."""

    def experiment(scope):
        with scope():
            model = oracle.mlp(keras, keras.layers.LayerNormalization())
            optimizer = getattr(package(keras), name)(
                0.05, parallel=parallel, global_clipnorm=1.0, use_ema=True
            )
            model.compile(optimizer, loss="mse")
        history = model.fit(oracle.dataset(25, 8), epochs=3, verbose=0, shuffle=False)
        return oracle.outcome(model, history)

    oracle.compare(comm, strategy, experiment, rtol=2e-5, atol=2e-5)


def test_inside_conditions(comm, keras, strategy):
    """Loss scaling, and accumulation in Keras 3, put the step and its all-gather into a `tf.cond`."""

    def experiment(scope):
        with scope():
            model = oracle.mlp(keras)
            if keras.__name__ == "keras":
                inner = lars_pto.LARS(0.5, parallel="on", gradient_accumulation_steps=2)
                optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
            else:
                inner = legacy_keras.LARS(0.5, parallel="on")
                optimizer = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=64.0)
            model.compile(optimizer, loss="mse")
        history = model.fit(oracle.dataset(24, 8), epochs=2, verbose=0, shuffle=False)
        return oracle.outcome(model, history)

    oracle.compare(comm, strategy, experiment, rtol=2e-5, atol=2e-5)
