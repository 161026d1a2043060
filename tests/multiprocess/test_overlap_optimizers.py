"""Which optimizers DeAR divides, how they are made, and what is refused."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.overlap_runs import adam, built, compare, custom_step, pair
from tests.thorough import thorough


@pytest.fixture(scope="module")
def strategies(comm):
    """(without overlap, with)."""
    return pair()


class Counting(keras.optimizers.SGD):
    """Keeps a number that is nobody's slot."""

    def build(self, variables):
        super().build(variables)
        self._number = keras.Variable(0.0)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: keras.optimizers.Adafactor(0.1), "means over rows"),
        (lambda: keras.optimizers.Lamb(0.1), "whole variable"),
        (lambda: Counting(0.1), "a number for all variables"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), "use_ema"),
    ],
    ids=["adafactor", "lamb", "counting", "ema"],
)
def test_refused_optimizers(partners, strategies, make, reason):
    with pytest.raises(ValueError, match=reason):
        built(strategies[1], make)


@pytest.mark.parametrize("kind", [0, 1], ids=["DeAR", "ShardedUpdate"])
def test_an_optimizer_from_outside_the_scope_is_refused(partners, kind):
    """It would train without overlap; or, with slots, fail in TensorFlow's words."""
    overlap = [tss.overlap.DeAR(), tss.overlap.ShardedUpdate()][kind]
    strategy, optimizer = tss.SparseStrategy(overlap=overlap), keras.optimizers.SGD(0.1)
    with strategy.scope():
        model = oracle.mlp(keras)
        model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match="SGD was made outside strategy.scope"):
        model.fit(oracle.dataset(4, 2), verbose=0)


class Fading(keras.optimizers.schedules.LearningRateSchedule):
    """As Keras's documents show one, without get_config."""

    def __call__(self, step):
        return 0.1 / (1 + keras.ops.cast(step, "float32"))


class Plain(keras.optimizers.SGD):
    """Of one's own, which knows its rate alone."""

    elementwise = True

    def __init__(self, learning_rate, name="plain"):
        super().__init__(learning_rate, name=name)

    def get_config(self):
        return {"learning_rate": float(self.learning_rate.numpy()), "name": self.name}


class ByName(keras.optimizers.SGD):
    """Of one's own, with half the rate for biases."""

    elementwise = True

    def update_step(self, gradient, variable, learning_rate):
        rate = learning_rate / 2 if "bias" in variable.name else learning_rate
        super().update_step(gradient, variable, rate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ByName(0.1),
        lambda: keras.optimizers.Adam(Fading()),
        pytest.param(lambda: keras.optimizers.Adam(lambda: 0.01), marks=thorough),
        lambda: Plain(0.1),
    ],
    ids=["by name", "schedule", "function", "own"],
)
def test_rates_and_optimizers_without_a_configuration(comm, strategies, make):
    compare(comm, strategies, make)


def test_an_optimizer_from_outside_the_scope_without_overlap(strategies):
    """One without slots needs nothing of the strategy, be it for a table."""
    with strategies[0].scope():
        model = keras.Sequential([keras.Input([3]), tss.layers.ShardedEmbedding(9, 1)])
    keras.optimizers.SGD(0.1).build(model.trainable_variables)
    if strategies[0].topology.num_workers > 1:  # which has a part of the table, of which slots are none
        with pytest.raises(ValueError, match="Adam was made outside strategy.scope"):
            adam().build(model.trainable_variables)
    else:
        adam().build(model.trainable_variables)
    keras.optimizers.SGD(0.1).build(oracle.mlp(keras).trainable_variables)


def test_a_failed_build_leaves_the_optimizer_before_it(strategies, partners):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    with strategy.scope(), pytest.raises(ValueError, match="a number for all variables"):
        Counting(0.1).build(model.trainable_variables)
    assert strategy.extended.chunked.of(optimizer) is not None
    custom_step(strategy, model, optimizer)(tf.ones([2, oracle.FEATURES]))
    strategy.synchronize()


def test_frozen_variables_forget_an_optimizer_that_is_gone(strategies, partners):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    frozen = model.layers[-1]
    gone = weakref.ref(strategy.extended.chunked.of(optimizer))
    frozen.trainable = False
    del optimizer
    with strategy.scope():
        adam().build(model.trainable_variables)
    gc.collect()
    assert gone() is None and all(w.value.owner is None for w in frozen.weights)


def test_refused_constraint(partners, strategies):
    with strategies[1].scope():
        layer, optimizer = keras.layers.Dense(2, kernel_constraint="non_neg"), adam()
        layer.build((None, 3))
        for _ in range(2):  # it must not be built by the first, and go on without overlap
            with pytest.raises(ValueError, match="constraint"):
                optimizer.build(layer.trainable_variables)


@pytest.mark.parametrize("is_called", [False, True], ids=["without a call", "with one"])
@pytest.mark.parametrize("held", [True, False])
def test_two_optimizers_keep_their_variables(comm, strategies, held, is_called):
    """As Keras's own GAN, or in a closure; the optimizer that Keras gives to it as well, nobody uses."""

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.Sequential([keras.Input([1]), keras.layers.Dense(1)]) for _ in range(2)]
            self.built = True

        if is_called:

            def call(self, x):
                return self.parts[1](self.parts[0](x))

        def compile(self, optimizers):
            super().compile()
            self.held = optimizers if held else None
            for optimizer, part in zip(optimizers, self.parts, strict=True):
                optimizer.build(part.trainable_variables)

        def train_step(self, data):
            losses = {}
            for number, (optimizer, part) in enumerate(zip(optimizers, self.parts, strict=True)):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((part(data[0]) - 1) ** 2) / 2
                optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
                losses[f"loss {number}"] = loss
            return losses

    with strategies[1].scope():
        model, optimizers = Gan(), [adam(), adam()]
        model.compile(optimizers)
    x, _ = oracle.regression(8)
    model.fit(x[:, :1], x[:, :1], batch_size=4, epochs=2, verbose=0)
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)


def test_a_model_without_call_is_compiled_again(comm, strategies):
    """Its new optimizer takes over from the one before, which somebody still holds."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            self.built = True

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.net(data[0]) - 1) ** 2) / 2
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    x, _ = oracle.regression(8)
    with strategies[1].scope():
        model, optimizers = Own(), [adam(), keras.optimizers.SGD(0.1)]
    for optimizer in optimizers:
        model.compile(optimizer)
        model.fit(x[:, :1], x[:, :1], batch_size=4, verbose=0)
        assert int(optimizer.iterations.numpy()) == 2
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)


def test_the_default_optimizer_takes_over_where_it_is_used(comm, strategies):
    """By Keras's own step, and not by an evaluation of another model of the same layers."""
    with strategies[1].scope():
        model = oracle.mlp(keras)
        model.compile(adam(), "mse")
        probe = keras.Model(model.input, model.output)
        probe.compile(loss="mse")
    data = oracle.dataset(8, 4)
    for _ in range(2):
        model.fit(data, verbose=0)
        probe.evaluate(data, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 4
    model.compile(loss="mse")
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 2
    for weight in model.get_weights():
        oracle.assert_identical(comm, weight)


def test_weights_of_an_optimizer_that_is_gone_are_gathered(partners):
    """It goes out of scope while they are behind, and another is built."""
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=64))
    model, optimizer = built(strategy)
    before, gone = model.get_weights(), weakref.ref(optimizer)

    def step(optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([2, oracle.FEATURES])) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    held = [optimizer]
    del optimizer
    strategy.run(lambda: step(held.pop()))
    gc.collect()
    assert gone() is None
    built(strategy)
    strategy.synchronize()
    assert any((new != old).any() for new, old in zip(model.get_weights(), before, strict=True))
