"""`LARS` and `LAMB` in Keras 3 and tf_keras: the tables, and everything Keras does around a rule."""

import copy
import dataclasses
import doctest
import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lars_pto
from lars_pto import layerwise, legacy_keras, options, trust_ratio
from tests import lars_reference as reference


@dataclasses.dataclass(frozen=True)
class Framework:
    """One Keras with our optimizers for it."""

    name: str
    keras: types.ModuleType
    optimizers: types.ModuleType

    def variable(self, value, dtype="float32", name="kernel"):
        if self.keras is keras:
            return keras.Variable(np.array(value), dtype=dtype, name=name)
        return tf.Variable(np.array(value), dtype=dtype, name=name)


FRAMEWORKS = [
    Framework("keras3", keras, lars_pto),
    Framework("tf_keras", tf_keras, legacy_keras),
]


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request):
    keras.utils.clear_session(free_memory=False)
    return request.param


def history(optimizer, variable, gradients) -> np.ndarray:
    """The variable's values after each gradient."""
    values = []
    for g in gradients:
        g = g if isinstance(g, tf.IndexedSlices) else tf.constant(g, variable.dtype)
        optimizer.apply_gradients([(g, variable)])
        values.append(np.array(variable))
    return np.array(values)


def rates_schedule(framework, rates):
    class Rates(framework.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.gather(tf.constant(rates, tf.float32), tf.cast(step, tf.int32))

        def get_config(self):
            return {}

    return Rates()


@pytest.mark.parametrize(("variant", "options", "rates", "expected"), reference.LARS_TABLE)
def test_lars_table(framework, variant, options, rates, expected):
    optimizer = framework.optimizers.LARS(
        rates_schedule(framework, rates),
        momentum=options["momentum"],
        weight_decay=options["decay"],
        trust_coefficient=options["eta"],
        epsilon=options.get("epsilon", 0.0),
        nesterov=options.get("nesterov", False),
        variant=variant,
        exclude_vectors=not options.get("adapts", True),
    )
    got = history(optimizer, framework.variable(reference.WEIGHTS), reference.GRADIENTS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("options", "expected"), reference.LAMB_TABLE)
def test_lamb_table(framework, options, expected):
    optimizer = framework.optimizers.LAMB(
        0.1,
        weight_decay=options["decay"],
        bias_correction=options.get("bias_correction", True),
        exclude_vectors=not options.get("adapts", True),
    )
    got = history(optimizer, framework.variable(reference.WEIGHTS), reference.GRADIENTS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6)


def test_lamb_with_the_gradients_clipped_first_is_nvidias(framework):
    optimizer = framework.optimizers.LAMB(
        0.1, weight_decay=0.1, exclude_vectors=False, global_clipnorm=1.0
    )
    got = history(optimizer, framework.variable(reference.WEIGHTS), reference.GRADIENTS)
    np.testing.assert_allclose(got, reference.LAMB_CLIPPED, rtol=0, atol=3e-6)


def test_lamb_without_decay_is_keras_lamb():
    rng = np.random.default_rng(0)
    w, gradients = rng.normal(size=(4, 3)), rng.normal(size=(10, 4, 3))
    ours = lars_pto.LAMB(0.01, weight_decay=None, epsilon=1e-7)
    got = history(ours, FRAMEWORKS[0].variable(w), gradients)
    theirs = history(keras.optimizers.Lamb(0.01), FRAMEWORKS[0].variable(w), gradients)
    np.testing.assert_allclose(got, theirs, rtol=2e-6, atol=1e-7)


def test_many_layers_at_once_are_each_on_their_own(framework):
    """Layers of different shapes keep their own norms; a None gradient moves nothing."""
    rng = np.random.default_rng(1)
    shapes = [(2, 3), (5,), (4, 2, 2), (1, 1), (3, 3)]
    weights = [rng.normal(size=shape) for shape in shapes]
    gradients = [[rng.normal(size=shape) for shape in shapes] for _ in range(4)]
    variables = [framework.variable(w, name=f"layer{i}") for i, w in enumerate(weights)]
    optimizer = framework.optimizers.LARS(2.0, weight_decay=0.01)
    for step in gradients:
        given = [tf.constant(g, tf.float32) for g in step[:-1]] + [None]
        optimizer.apply_gradients(zip(given, variables, strict=True))
    for i, shape in enumerate(shapes[:-1]):
        matrix = len(shape) > 1
        expected = reference.lars(
            "classic",
            weights[i],
            [step[i] for step in gradients],
            [2.0] * 4,
            eta=0.001,
            momentum=0.9,
            decay=0.01 if matrix else 0.0,
            adapts=matrix,
        )[-1]
        np.testing.assert_allclose(np.array(variables[i]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.array(variables[-1]), np.float32(weights[-1]))


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_sparse_gradients_count_as_the_dense_ones(framework, name):
    """Duplicate rows included: the norm of their values is not the norm of the gradient."""
    rng = np.random.default_rng(2)
    w = rng.normal(size=(6, 3))
    sparse, dense = [], []
    for indices in [[1, 1, 4], [0, 4, 4], [5, 5, 5]]:
        values = rng.normal(size=(3, 3)).astype("float32")
        sparse.append(
            tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([6, 3]))
        )
        full = np.zeros((6, 3), "float32")
        np.add.at(full, indices, values)
        dense.append(full)
    make = getattr(framework.optimizers, name)
    got = history(make(0.5), framework.variable(w), sparse)
    np.testing.assert_allclose(got, history(make(0.5), framework.variable(w), dense), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(framework, dtype):
    """Float64 stays float64; halves are computed in float32: 300² is beyond float16."""
    w, g = [[300.0, 400.0]], [[60.0, 80.0]]
    variable = framework.variable(w, dtype)
    [got] = history(framework.optimizers.LARS(1.0, weight_decay=0.1), variable, [g])
    expected = np.multiply(w, 0.999)
    tolerance = {"float64": 1e-7, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
    np.testing.assert_allclose(got.astype("float64"), expected, rtol=tolerance)


def test_zero_weights_zero_gradients_and_nan(framework):
    for w, g, expected in [
        ([[0.0, 0.0]], [[0.6, 0.8]], [[-0.6, -0.8]]),
        ([[3.0, 4.0]], [[0.0, 0.0]], [[2.7, 3.6]]),
        ([[3.0, 4.0]], [[np.nan, 0.8]], [[np.nan, np.nan]]),
    ]:
        optimizer = framework.optimizers.LARS(1.0, weight_decay=0.1)
        [got] = history(optimizer, framework.variable(w), [g])
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_lamb_without_epsilon(framework):
    """An element without a gradient has no direction, not 0/0."""
    optimizer = framework.optimizers.LAMB(0.1, epsilon=0.0, weight_decay=0.0)
    [got] = history(optimizer, framework.variable([[3.0, 4.0]]), [[[0.0, 2.0]]])
    np.testing.assert_allclose(got, [[3.0, 3.5]], rtol=1e-6)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_weights_that_keras_is_told_to_exclude_do_not_decay(framework, name):
    kind, found = getattr(framework.optimizers, name), []
    for decay in (0.1, 0.0):
        optimizer = kind(0.1, weight_decay=decay)
        if decay:
            optimizer.exclude_from_weight_decay(var_names=["kernel"])
        found.append(history(optimizer, framework.variable([[3.0, 4.0]]), [[[0.6, 0.8]]] * 2))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_layers_that_keras_is_told_to_exclude_do_not_decay(framework, name):
    """By the name that Keras's own optimizers look for: the layer's and the variable's."""
    found = []
    for decay in (0.1, 0.0):
        model = small_model(framework)
        optimizer = getattr(framework.optimizers, name)(0.1, weight_decay=decay)
        optimizer.exclude_from_weight_decay(var_names=["first", "head"])
        variables = model.trainable_variables
        optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
        found.append(model.get_weights())
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", [legacy_keras.LARS, legacy_keras.LAMB])
def test_a_function_is_no_rate_in_tf_keras(kind):
    """Which would call it once."""
    with pytest.raises(TypeError, match="tf_keras calls a function once"):
        kind(lambda: 0.1)
    kind(tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


def small_model(framework):
    k = framework.keras
    k.utils.set_random_seed(3)
    return k.Sequential(
        [
            k.Input((6,)),
            k.layers.Dense(8, name="first"),
            k.layers.BatchNormalization(name="norm"),
            k.layers.Dense(1, name="head"),
        ]
    )


def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(32, 6)).astype("float32")
    return x, x[:, :1] - 2 * x[:, 1:2]


@pytest.mark.parametrize(
    ("vectors", "patterns", "expected"),
    [(True, ["head"], "first/kernel"), (False, ["bias", "norm/"], "(first|head)/kernel")],
)
def test_patterns_see_the_names_of_layers(framework, vectors, patterns, expected):
    model = small_model(framework)
    optimizer = framework.optimizers.LARS(
        1.0, weight_decay=0.1, exclude_vectors=vectors, weight_decay_exclusions=patterns
    )
    optimizer.build(model.trainable_variables)
    by_name = {
        getattr(v, "path", v.name): tuple(t)
        for v, t in zip(model.trainable_variables, optimizer._treatments, strict=True)
    }
    treated = {name for name, treatment in by_name.items() if all(treatment)}
    assert len(by_name) == 6
    assert treated == {name for name in by_name if re.search(expected, name)} != set()


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_configuration_survives(framework, name):
    options = dict(
        learning_rate=framework.keras.optimizers.schedules.CosineDecay(0.5, 100),
        weight_decay=None,
        weight_decay_exclusions=["bn", "bias"],
        adaptation_exclusions=[],
        exclude_vectors=False,
        clipnorm=2.0,
        use_ema=True,
        name="mine",
    )
    if name == "LARS":
        options |= dict(variant="larc_clip", ratio_bounds=[0.0, 1.0], nesterov=True)
    optimizer = getattr(framework.optimizers, name)(**options)
    config = framework.keras.optimizers.serialize(optimizer)
    again = framework.keras.optimizers.deserialize(copy.deepcopy(config))
    assert type(again) is type(optimizer)
    assert again._rule == optimizer._rule and tuple(again._exclusions) == tuple(optimizer._exclusions)
    assert framework.keras.optimizers.serialize(again) == config


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_a_saved_model_goes_on_as_if_nothing_had_happened(framework, name, tmp_path):
    x, y = data()
    make = getattr(framework.optimizers, name)
    model = small_model(framework)
    model.compile(make(0.5), loss="mse")
    model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    again = framework.keras.models.load_model(tmp_path / "model.keras")
    again.fit(x, y, epochs=2, shuffle=False, verbose=0)
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_checkpoint_restores_the_slots(framework, tmp_path):
    variable = framework.variable([[3.0, 4.0]])
    optimizer = framework.optimizers.LARS(1.0)
    value = variable.value if framework.keras is keras else variable
    checkpoint = tf.train.Checkpoint(variable=value, optimizer=optimizer)
    history(optimizer, variable, [[[0.6, 0.8]]])
    path = checkpoint.save(tmp_path / "checkpoint")
    gradients = [[[-0.5, 1.2]], [[0.3, -0.4]]]
    expected = history(optimizer, variable, gradients)
    checkpoint.restore(path)
    np.testing.assert_array_equal(history(optimizer, variable, gradients), expected)


@pytest.mark.parametrize("clip", [{"clipnorm": 0.5}, {"clipvalue": 0.3}, {"global_clipnorm": 0.5}])
def test_clipping_comes_first(framework, clip):
    w, g = [[3.0, 4.0]], np.array([[0.6, 0.8]])
    clipped = np.clip(g, -0.3, 0.3) if "clipvalue" in clip else g / 2
    optimizer = framework.optimizers.LARS(1.0, weight_decay=0.1, **clip)
    [got] = history(optimizer, framework.variable(w), [g])
    expected = reference.lars("classic", w, [clipped], [1.0], eta=0.001, momentum=0.9, decay=0.1)
    np.testing.assert_allclose(got, expected[0], rtol=1e-6)


def test_moving_average(framework):
    """Keras averages the weights our rule made."""
    w = framework.variable([[3.0, 4.0]])
    optimizer = framework.optimizers.LARS(1.0, use_ema=True, ema_momentum=0.5)
    values = history(optimizer, w, [[g] for g in reference.GRADIENTS])
    average = values[0] if framework.keras is keras else np.array([[3.0, 4.0]])
    for value in values[1 if framework.keras is keras else 0 :]:
        average = 0.5 * average + 0.5 * value
    optimizer.finalize_variable_values([w])
    np.testing.assert_allclose(np.array(w), average, rtol=1e-6)


def test_gradient_accumulation():
    w = [[3.0, 4.0]]
    gradients = [[[0.5, 0.2]], [[0.7, 1.4]], [[-1.0, 1.0]], [[0.0, 1.4]]]
    optimizer = lars_pto.LARS(1.0, weight_decay=0.1, gradient_accumulation_steps=2)
    got = history(optimizer, FRAMEWORKS[0].variable(w), gradients)
    means = [np.mean(gradients[:2], axis=0), np.mean(gradients[2:], axis=0)]
    expected = reference.lars("classic", w, means, [1.0] * 2, eta=0.001, momentum=0.9, decay=0.1)
    np.testing.assert_allclose(got, [w[:1], expected[0], expected[0], expected[1]], rtol=1e-6)


def test_mixed_precision_skips_an_overflow(framework):
    """Float16 loss scaling: an infinite gradient leaves weights and slots, a finite one is unscaled."""
    variable = framework.variable([[3.0, 4.0]])
    if framework.keras is keras:
        scaled = keras.optimizers.LossScaleOptimizer(lars_pto.LARS(1.0), initial_scale=4.0)
        [after_overflow] = history(scaled, variable, [[[np.inf, 1.0]]])
        scale = float(scaled.dynamic_scale)
    else:
        scaled = tf_keras.mixed_precision.LossScaleOptimizer(
            legacy_keras.LARS(1.0), initial_scale=4.0
        )
        scaled.apply_gradients([(tf.constant([[np.inf, 1.0]]), variable)])
        after_overflow, scale = np.array(variable), float(scaled.loss_scale)
    np.testing.assert_array_equal(after_overflow, [[3.0, 4.0]])
    assert scale == 2.0
    gradient = np.array([[0.6, 0.8]])
    given = gradient * 2 if framework.keras is keras else gradient  # tf_keras unscales apart
    scaled.apply_gradients([(tf.constant(given, tf.float32), variable)])
    [expected] = history(
        framework.optimizers.LARS(1.0), framework.variable([[3.0, 4.0]]), [gradient]
    )
    np.testing.assert_allclose(np.array(variable), expected, rtol=1e-6)


def test_fit_in_mixed_precision(framework):
    x, y = data()
    framework.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small_model(framework)
    finally:
        framework.keras.mixed_precision.set_global_policy("float32")
    model.compile(framework.optimizers.LAMB(0.05), loss="mse")
    losses = model.fit(x, y, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_constraints_hold(framework):
    layers = framework.keras.layers
    model = framework.keras.Sequential(
        [framework.keras.Input((6,)), layers.Dense(4, kernel_constraint="non_neg"), layers.Dense(1)]
    )
    model.compile(framework.optimizers.LARS(100.0), loss="mse")
    model.fit(*data(), epochs=2, verbose=0)
    assert (model.get_weights()[0] >= 0).all()


def test_errors_name_the_argument(framework):
    with pytest.raises(ValueError, match="variant='lars'; allowed are classic"):
        framework.optimizers.LARS(1.0, variant="lars")


@pytest.mark.parametrize("module", [layerwise, options, trust_ratio], ids=lambda m: m.__name__)
def test_docs(module):
    failed, tried = doctest.testmod(module, extraglobs={"lars_pto": lars_pto})
    assert failed == 0 and tried > 0
