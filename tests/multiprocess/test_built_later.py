"""Models that Keras 3 builds when it sees data: from shapes alone, or in the first step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle

ROWS, BATCH = 24, 8


def parts():
    return [keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]


class Block(keras.layers.Layer):
    """Without a `build`."""

    def __init__(self):
        super().__init__()
        self.parts = parts()

    def call(self, x, training=False):
        for part in self.parts:
            x = part(x, training=training) if isinstance(part, keras.layers.BatchNormalization) else part(x)
        return x


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def call(self, x, training=False):
        return self.block(x, training=training)


def functional():
    inputs = keras.Input([oracle.FEATURES])
    return keras.Model(inputs, Block()(inputs))


LATER = {"sequential": lambda: keras.Sequential(parts()), "subclassed": Subclassed, "within": functional}


@pytest.mark.parametrize("made", LATER.values(), ids=LATER)
def test_statistics_are_those_of_all_workers(comm, strategy, made):
    """BatchNormalization's, which are means of the workers' as in a model that is built at once."""

    def trained(made):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = made()
            model.compile("sgd", "mse")
        history = model.fit(oracle.dataset(ROWS, BATCH), epochs=2, verbose=0)
        history.history["evaluated"] = model.evaluate(oracle.dataset(ROWS, BATCH), verbose=0)
        return oracle.outcome(model, history)

    found = trained(made)
    at_once = trained(lambda: keras.Sequential([keras.Input([oracle.FEATURES]), *parts()]))
    oracle.assert_identical(comm, np.concatenate([np.ravel(value) for value in found.values()]))
    oracle.assert_same(found, at_once)


class OwnStep(keras.Model):
    """What its step makes of a batch decides what is built: wider rows, classes, a `tf.Variable`."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)
        self.scale = tf.Variable(1.5, name="scale")

    def call(self, x):
        return self.scale * self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        x, y = tf.concat([x, x[:, :2]], axis=1), tf.one_hot(y, 3)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        trained = [*self.trainable_variables, self.scale]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return self.compute_metrics(x, y, predicted)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_of_its_own_builds_what_it_uses(comm, strategy, steps):
    """Not what Keras would of the batch as the data have it."""
    x, y = oracle.regression(ROWS)
    labels = (y[:, 0] > 0).astype("int32") + (y[:, 0] > 0.5)

    def run(scope):
        keras.utils.set_random_seed(1)
        with scope():
            model = OwnStep()
            optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
            loss = keras.losses.CategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=steps)
        data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH)
        history = model.fit(data, epochs=3, verbose=0)
        history.history.pop("loss")  # Keras's own, of which a step that calls compute_loss keeps none
        return oracle.outcome(model, history, scale=model.scale.numpy())

    found = oracle.compare(comm, strategy, run)
    assert found["scale"] != 1.5 and found["log accuracy"][-1] > 0.5


class OfWords(keras.Model):
    """Whose `call` needs what only a ragged or a sparse tensor has."""

    def __init__(self, dense):
        super().__init__()
        self.dense, self.out = dense, keras.layers.Dense(1)

    def call(self, x):
        return self.out(tf.reduce_sum(self.dense(x), axis=1, keepdims=True))


@pytest.mark.parametrize("eagerly", [False, True], ids=["in a graph", "eagerly"])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_inputs_that_are_not_dense(comm, strategy, kind, eagerly):
    words = tf.ragged.constant([[float(n)] * (n % 4) for n in range(ROWS + 1)])
    y = np.arange(ROWS + 1, dtype="float32")[:, np.newaxis] / ROWS
    x = words if kind == "ragged" else words.to_sparse()
    dense = (lambda x: x.to_tensor()) if kind == "ragged" else tf.sparse.to_dense

    def run(scope):
        keras.utils.set_random_seed(1)
        with scope():
            model = OfWords(dense)
            model.out.build([None, 1])
            model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=["mae"], run_eagerly=eagerly)
        oracle.start(model)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        return oracle.outcome(model, model.fit(data, epochs=2, verbose=0))

    oracle.compare(comm, strategy, run)


def test_divided_updates_where_shapes_cannot_be_inferred(topology):
    """The optimizer has to be there before the first step."""
    words = tf.ragged.constant([[float(n)] * (n % 4) for n in range(ROWS)])
    with tss.SparseStrategy(overlap=tss.overlap.DeAR()).scope():
        model = OfWords(lambda x: x.to_tensor())
        model(words)
        model.compile(keras.optimizers.Adam(1e-3), "mse")
    data = tf.data.Dataset.from_tensor_slices((words, np.ones([ROWS, 1], "float32"))).batch(BATCH)
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == ROWS // BATCH


def test_metrics_from_outside_the_scope_are_refused_before_a_step_of_its_own(strategy, topology):
    metric = keras.metrics.MeanSquaredError()
    with strategy.scope():
        model = OwnStep()
        model.compile("sgd", "mse", metrics=[metric])
    if topology.num_workers > 1:
        with pytest.raises(ValueError, match="made outside"):
            model.fit(oracle.dataset(ROWS, BATCH), verbose=0)
    assert not model.built


@pytest.mark.parametrize("built", [lambda m: m.build([None, 1]), lambda m: m(np.ones([1, 1]))])
def test_variables_that_are_made_outside_the_scope_are_named(strategy, built):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, name="last")])
        model.compile("sgd", "mse")
    built(model)
    with pytest.raises(ValueError, match="last/kernel' was made outside strategy.scope()"):
        model.fit(np.ones([BATCH, 1]), np.ones([BATCH, 1]), verbose=0)


def test_optimizers_that_are_made_outside_the_scope_are_named(strategy):
    def fit(optimizer):
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            model.compile(optimizer, "mse")
        return model.fit(np.ones([BATCH, 1]), np.ones([BATCH, 1]), verbose=0)

    with pytest.raises(ValueError, match="Adam was made outside strategy.scope"):
        fit(keras.optimizers.Adam())
    assert fit(keras.optimizers.SGD())  # which keeps nothing beside variables


def test_a_generator_that_a_dataset_makes(comm, strategy):
    """By drawing in its functions before anybody else draws."""
    keras.utils.clear_session()
    with strategy.scope():
        data = tf.data.Dataset.range(3).map(lambda _: keras.random.uniform([2]))
    drawn = np.stack(list(data))
    oracle.assert_identical(comm, drawn)
    assert len(np.unique(drawn)) == 6


def test_orbax_is_refused(strategy, partners):
    """Keras's callback asks JAX which worker it is on."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(NotImplementedError, match="BackupAndRestore"):
        keras.callbacks.OrbaxCheckpoint.set_model(keras.callbacks.Callback(), model)
