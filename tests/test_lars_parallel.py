"""LARS and LAMB with divided norms are LARS and LAMB, for 1 to 8 replicas in one process."""

import logging
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import lars_pto
from lars_pto import decision, legacy_keras, norms
from tests.lars_layers import MODELS, train

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
PACKAGES = {"keras3": lars_pto, "tf_keras": legacy_keras}


def mirrored(workers: int):
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(workers)], tf.distribute.ReductionToOneDevice()
    )


def maker(framework: str, optimizer: str, parallel: str):
    options = dict(learning_rate=0.5, parallel=parallel)
    if optimizer != "LAMB":
        options |= dict(variant=optimizer, momentum=0.8, weight_decay=0.01, nesterov=True)
    options |= dict(weight_decay_exclusions=["layer3"], adaptation_exclusions=["layer5"])
    return lambda: getattr(PACKAGES[framework], "LAMB" if optimizer == "LAMB" else "LARS")(**options)


def check_same(ours, expected, exact: bool) -> None:
    for a, b in zip(ours, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, b, rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_divided_is_undivided_is_no_strategy(workers, model):
    exact = model != "one huge"  # the only one with a layer that is cut
    expected, _ = train("keras3", maker("keras3", "classic", "off"), model)
    for parallel in ("off", "on"):
        ours, optimizer = train(
            "keras3", maker("keras3", "classic", parallel), model, mirrored(workers)
        )
        check_same(ours, expected, exact or parallel == "off")
    measured = any(len(shape) > 1 for shape in MODELS[model])
    assert not measured or optimizer.parallel_decision.divide == (workers > 1)


@pytest.mark.parametrize("framework", PACKAGES)
@pytest.mark.parametrize("optimizer", ["joint_norm", "after_momentum", "larc_clip", "LAMB"])
def test_other_rules(framework, optimizer):
    expected, _ = train(framework, maker(framework, optimizer, "off"), "many")
    ours, _ = train(framework, maker(framework, optimizer, "on"), "many", mirrored(3))
    check_same(ours, expected, exact=True)


@pytest.mark.parametrize("framework", PACKAGES)
@pytest.mark.parametrize("optimizer", ["classic", "LAMB"])
def test_sparse_gradients(framework, optimizer):
    expected, _ = train(framework, maker(framework, optimizer, "off"), "many")
    ours, _ = train(
        framework, maker(framework, optimizer, "on"), "many", mirrored(2), sparse=0
    )
    check_same(ours, expected, exact=True)


def test_the_replicas_hold_the_same_bits_after_a_nan():
    strategy = mirrored(2)
    with strategy.scope():
        variable = keras.Variable(np.ones([2, 2], "float32"))
        optimizer = lars_pto.LARS(1.0, parallel="on")
        optimizer.build([variable])

    @tf.function
    def run():
        def step():
            context = tf.distribute.get_replica_context()
            bad = tf.cast(context.replica_id_in_sync_group, tf.float32) * np.float32("nan")
            optimizer.apply_gradients([(tf.ones([2, 2]) * bad, variable)])

        strategy.run(step)

    run()
    for replica in strategy.experimental_local_results(variable.value):
        assert np.isnan(replica.numpy()).all()


def test_auto_does_not_guess_where_it_cannot_measure(caplog):
    with caplog.at_level(logging.INFO, "lars_pto.norms"):
        _, optimizer = train("keras3", maker("keras3", "classic", "auto"), "many", mirrored(2))
    assert not optimizer.parallel_decision.divide
    assert "several replicas in one process" in caplog.text


def test_auto_needs_no_decision_alone():
    _, optimizer = train("keras3", maker("keras3", "classic", "auto"), "many")
    assert optimizer.parallel_decision == (False, "there is one worker")


def test_decisions():
    assert decision.decide([0.010] * 4, [0.004] * 4).divide
    assert not decision.decide([0.010] * 4, [0.0098] * 4).divide  # less than 5 %
    assert not decision.decide([100e-6] * 4, [60e-6] * 4).divide  # less than 50 µs
    assert not decision.decide([0.010] * 4, [0.004, 0.004, 0.012, 0.004]).divide  # the slowest counts
    assert "12.00 ms" in decision.decide([0.010] * 4, [0.004, 0.004, 0.012, 0.004]).reason


def test_medians_leave_the_warm_up_out():
    calls, delays = [], iter([0.3] * 3 + [0.0] * 10)

    def slow_at_first():
        calls.append("first")
        time.sleep(next(delays))

    first, second = decision.median_seconds(
        slow_at_first, lambda: calls.append("second"), ready=lambda: calls.append("ready")
    )
    assert first < 0.1 and second < 0.1
    assert calls == ["ready", "first", "ready", "second"] * 13  # in turns


def test_the_mode_survives_configuration():
    assert lars_pto.LARS.from_config(lars_pto.LARS(1.0, parallel="on").get_config())._norms.mode == "on"


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="parallel is 'yes'; allowed are auto, on, off"):
        lars_pto.LAMB(parallel="yes")


def test_dynamic_shapes_are_refused():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(w):
        return norms.divided_sums([w], [w], [0.0])

    with pytest.raises(ValueError, match="parallel='off'"):
        run(tf.ones([3]))
