"""Losses and steps of the user's own under `fit`: as in one process, also on a tail of one row."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.thorough import thorough_if

ROWS, BATCH = 25, 8  # a tail of one row, fewer than the workers


def fit(keras, model, loss, steps=1):
    model.compile(optimizer=keras.optimizers.SGD(0.02), loss=loss, steps_per_execution=steps)
    history = model.fit(oracle.dataset(ROWS, BATCH), epochs=2, verbose=0)
    return oracle.outcome(model, history)


def squared_errors(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted), axis=-1)


def mean_squared_error(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


@pytest.mark.parametrize("kind", thorough_if(lambda kind: kind == "rows", ["sum", "rows", "scalar"]))
def test_own_losses(comm, strategy, keras, kind):
    def run(scope):
        with scope():
            model = oracle.mlp(keras)
            loss = {
                "sum": keras.losses.MeanSquaredError(reduction="sum"),
                "rows": squared_errors,
                "scalar": mean_squared_error,
            }[kind]
            outcome = fit(keras, model, loss)
        if keras is not keras3:  # tf_keras logs P times the mean of the workers' sums
            outcome = {k: v for k, v in outcome.items() if k.startswith("weight")}
        return outcome

    oracle.compare(comm, strategy, run)


class Halved(keras3.losses.Loss):
    def call(self, y, predicted):
        return keras3.losses.Huber()(y, predicted) / 2


class OfRows(keras3.losses.Loss):
    def call(self, y, predicted):
        return keras3.losses.Huber()(y, predicted) + squared_errors(y, predicted)


class SumOfRows(keras3.losses.Loss):
    def call(self, y, predicted):
        return tf.reduce_sum(keras3.losses.MeanSquaredError(reduction=None)(y, predicted)) / BATCH


class OwnCall(keras3.losses.Loss):
    """Which Keras then neither reduces nor scales."""

    def __call__(self, y, predicted, sample_weight=None):
        return keras3.losses.Huber()(y, predicted) + mean_squared_error(y, predicted)


class AroundKeras(keras3.losses.MeanSquaredError):
    def __call__(self, y, predicted, sample_weight=None):
        return super().__call__(y, predicted, sample_weight) + mean_squared_error(y, predicted)


class HuberAlone(keras3.losses.Loss):
    def __call__(self, y, predicted, sample_weight=None):
        return keras3.losses.Huber()(y, predicted)


KINDS = ["rows", "scalar", "class", "unreduced", "sum", "sum of rows", "a sum", "own call", "around Keras's"]
KINDS += ["own call, unreduced", "own call, sum"]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_losses(comm, strategy, kind):
    """Of Keras 3; tf_keras refuses them. Each reduces itself, and is scaled as a part of the whole alone."""
    huber = keras3.losses.Huber()
    loss = {
        "rows": lambda y, predicted: huber(y, predicted) + squared_errors(y, predicted),
        "scalar": lambda y, predicted: huber(y, predicted) + mean_squared_error(y, predicted),
        "class": Halved(),
        "unreduced": Halved(reduction=None),
        "sum": Halved(reduction="sum"),
        "sum of rows": OfRows(reduction="sum"),
        "a sum": SumOfRows(reduction="sum"),
        "own call": OwnCall(),
        "around Keras's": AroundKeras(),
        "own call, unreduced": HuberAlone(reduction=None),
        "own call, sum": HuberAlone(reduction="sum"),
    }[kind]

    def run(scope):
        with scope():
            return fit(keras3, oracle.mlp(keras3), loss)

    oracle.compare(comm, strategy, run)


@pytest.mark.parametrize("even", [False, True], ids=["a tail", "even"])
def test_an_unreduced_loss_is_logged_as_its_mean(comm, strategy, even):
    def run(scope):
        with scope():
            model = oracle.mlp(keras3)
            model.compile(keras3.optimizers.SGD(0.02), keras3.losses.MeanSquaredError(reduction=None))
        data = tf.data.Dataset.from_tensor_slices(oracle.regression(ROWS)).batch(BATCH, drop_remainder=even)
        return oracle.outcome(model, model.fit(data, epochs=2, verbose=0))

    oracle.compare(comm, strategy, run)


def test_a_loss_outside_of_a_step_is_whole(strategy):
    with strategy.scope():
        loss = keras3.losses.MeanSquaredError()(tf.zeros([4, 1]), tf.ones([4, 1]))
    assert float(loss) == 1


def test_a_class_gives_a_step_of_ones_own_the_same_once_it_was_compiled(strategy, topology):
    class Around(keras3.losses.MeanSquaredError):
        def __call__(self, y, predicted, sample_weight=None):
            return super().__call__(y, predicted, sample_weight)

    def own_step():
        return strategy.run(lambda: Around()(tf.ones([2, 1]), tf.zeros([2, 1])))

    before = float(own_step())
    assert before == np.float32(1 / topology.num_workers)
    with strategy.scope():
        model = oracle.mlp(keras3)
        model.compile(loss=Around())
    model.evaluate(oracle.dataset(ROWS, BATCH), verbose=0)
    assert float(own_step()) == before


class OfALoss(keras3.metrics.Mean):
    def update_state(self, y, predicted, sample_weight=None):
        return super().update_state(keras3.losses.Huber()(y, predicted))


def test_losses_that_metrics_call_are_whole(comm, strategy):
    """Also one in a tf.function that the loss calls, too, where it is a share."""
    huber = keras3.losses.Huber()
    traced = tf.function(lambda y, predicted: huber(y, predicted))

    class OwnLoss(keras3.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return traced(y, y_pred)

    def run(scope):
        with scope():
            template = oracle.mlp(keras3)
            model = OwnLoss(template.inputs, template.outputs)
            metrics = [OfALoss(name="own"), keras3.metrics.MeanMetricWrapper(traced, name="traced")]
            model.compile(keras3.optimizers.SGD(0.02), metrics=metrics)
        return oracle.outcome(model, model.fit(oracle.dataset(ROWS, BATCH), epochs=2, verbose=0))

    oracle.compare(comm, strategy, run)


class OwnStep(keras3.Model):
    """Scales its loss by the global batch size, as custom loops do."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            per_row = tf.reduce_mean(tf.square(y - self(x, training=True)), axis=-1)
            loss = tf.nn.compute_average_loss(per_row, global_batch_size=BATCH)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"rate": self.optimizer.learning_rate}


def test_own_train_step(comm, strategy):
    def run(scope):
        with scope():
            template = oracle.mlp(keras3)
            model = OwnStep(template.inputs, template.outputs)
            return fit(keras3, model, None)

    oracle.compare(comm, strategy, run)


@pytest.mark.parametrize(
    ("student", "distilled"),
    [("mse", keras3.losses.MeanSquaredError()), (keras3.losses.MeanSquaredError(), "mae")],
    ids=["of a function", "of a Loss"],
)
def test_distillation(comm, strategy, student, distilled):
    """Keras's own step, which adds up means of its parts by itself."""

    def run(scope):
        with scope():
            teacher, model = oracle.start(oracle.mlp(keras3), seed=2), oracle.mlp(keras3)
            parts = keras3.distillation.LogitsDistillation(loss=distilled)
            distiller = keras3.distillation.Distiller(teacher, model, parts, student_loss_weight=0.3)
            outcome = fit(keras3, distiller, student)
        return {name: value for name, value in outcome.items() if "weight" in name or "loss" in name}

    oracle.compare(comm, strategy, run)


class Compiled(keras3.layers.Layer):
    """A layer that is a tf.function of its own around BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm = keras3.layers.BatchNormalization(synchronized=True)

    @tf.function
    def call(self, x, training=False):
        return self.norm(x, training=training)


def test_function_within_a_step_is_traced_once_and_called_in_many(comm, strategy):
    # Its first trace captured the rows of the first batch, which later traces cannot see.
    def run(scope):
        with scope():
            model = oracle.mlp(keras3, Compiled())
            first = fit(keras3, model, "mse")
            again = fit(keras3, model, "mae")
            return {**{f"first {k}": v for k, v in first.items()}, **again}

    oracle.compare(comm, strategy, run)


def test_workers_of_different_seeds_are_told(comm, topology, caplog):
    tf.random.set_seed(topology.rank)
    tss.SparseStrategy()
    told = any("different random seeds" in record.getMessage() for record in caplog.records)
    assert told == (topology.num_workers > 1)
    tf.random.set_seed(0)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("of", ["arrays", "dataset"])
def test_shuffles_of_workers_that_were_seeded_apart_are_told(comm, topology, caplog, of, apart):
    """Seeded after the strategy, which gives them one seed: each takes its part of another order."""
    strategy = tss.SparseStrategy()
    with strategy.scope():
        model = keras3.Sequential([keras3.Input([1]), keras3.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([4 * topology.num_workers, 1], "float32")
    if not apart or topology.rank > 0:  # the first keeps the one that it was given
        tf.random.set_seed(topology.rank * apart)
    if of == "arrays":
        model.fit(x, x, batch_size=2 * topology.num_workers, verbose=0)
    else:
        data = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(8, seed=1).batch(2 * topology.num_workers)
        model.fit(data, verbose=0)
    told = any("seeds of shuffles" in record.getMessage() for record in caplog.records)
    assert told == (apart and topology.num_workers > 1 and topology.rank == 0)
    tf.random.set_seed(0)


APART = ["unseeded", "seeded", "a part", "a part of files", "files as listed", "a part for all"]


@pytest.mark.parametrize("what", APART)
def test_data_that_workers_read_apart_is_told(comm, strategy, topology, shared_tmp, caplog, what):
    """Made without a seed before the strategy; or sharded as for Horovod, and then once more."""
    rank, p = topology.rank, topology.num_workers
    data = tf.data.Dataset.range(4 * p)
    if "files" in what:
        paths = [shared_tmp / str(number) for number in range(p)]
        paths[rank].write_text("1\n" * 4 * p)
        comm.barrier()
        names = [str(path) for path in paths]
        data = tf.data.TextLineDataset(names if "part" in what else names[rank:] + names[:rank])
    if "seed" in what:
        tf.random.set_seed(None)
        data = data.shuffle(4 * p, seed=None if what == "unseeded" else 1)
        tf.random.set_seed(0)
    elif "part" in what:
        data = data.shard(p, 0 if what == "a part for all" else rank)
    for _ in range(2):
        list(strategy.experimental_distribute_dataset(data.batch(p)))
    words = {"unseeded": "without a seed was made before", "a part": "leave out `shard`"}
    words |= {"a part of files": words["a part"], "files as listed": "sort names of files"}
    said = [words.get(what, "missed and repeated") in record.getMessage() for record in caplog.records]
    assert sum(said) == (p > 1 and what in words and rank == 0), "once, by the first worker"


class Seen(keras3.metrics.Metric):
    """How many rows it has seen: of one worker."""

    def __init__(self):
        super().__init__(name="seen")
        self.rows = keras3.Variable(0.0, trainable=False)

    def update_state(self, y, predicted, sample_weight=None):
        self.rows.assign_add(tf.cast(tf.shape(y)[0], tf.float32))

    def result(self):
        return self.rows.value

    def reset_state(self):
        self.rows.assign(0.0)


@pytest.mark.parametrize("made", [Seen, lambda: keras3.metrics.R2Score(name="seen")], ids=["own", "Keras's"])
def test_metrics_to_whose_state_no_other_worker_adds_are_told(topology, strategy, caplog, made):
    with strategy.scope():
        model = keras3.Sequential([keras3.Input([1]), keras3.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[made()])
    x = np.arange(4.0 * topology.num_workers, dtype="float32")[:, np.newaxis]
    for _ in range(2):
        model.fit(x, x, verbose=0)
    told = [record for record in caplog.records if "The metric 'seen'" in record.getMessage()]
    assert len(told) == (made is Seen and topology.num_workers > 1)


@pytest.mark.parametrize("seed", [None, 42])
def test_unseeded_workers_draw_the_same(comm, topology, seed):
    """By each generator that has not been seeded, whatever the others."""
    import random

    tf.random.set_seed(seed)
    random.seed(topology.rank)
    np.random.seed(topology.rank)
    tss.SparseStrategy()
    drawn = np.array([[random.random(), np.random.rand(), float(tf.random.uniform([]))]])
    everyone = comm.all_gather(tf.constant(drawn)).numpy()
    np.testing.assert_array_equal(everyone, np.tile(everyone[:1], [topology.num_workers, 1]))
    if seed is not None and topology.num_workers > 1:  # the user's, so that runs can be repeated
        assert drawn[0, :2].tolist() == [random.Random(seed).random(), np.random.RandomState(seed).rand()]


def test_seeded_workers_draw_what_they_were_seeded_for():
    import random

    import keras

    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        if not drawn:
            tss.SparseStrategy()
        drawn.append((random.random(), np.random.rand(), float(tf.random.uniform([]))))
    assert drawn[0] == drawn[1]


def test_the_mean_of_a_short_batch_is_of_its_rows(strategy, topology):
    """A layer's own mean over workers: a worker without rows does not count, one with fewer counts less."""
    import keras

    class BatchMean(keras.layers.Layer):
        def call(self, x):
            mean = tf.reduce_mean(x, axis=0, keepdims=True)
            context = tf.distribute.get_replica_context()
            return 0 * x + (context.all_reduce("MEAN", mean) if context else mean)

    rows, x = 2 * topology.num_workers + 1, np.arange(4 * topology.num_workers + 3, dtype="float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), BatchMean()])
    found = model.predict(x[:, np.newaxis], batch_size=rows, verbose=0)[:, 0]
    means = [x[first : first + rows].mean() for first in range(0, len(x), rows)]
    np.testing.assert_allclose(found, np.repeat(means, rows)[: len(x)], rtol=1e-6)


def test_shares_of_a_batch_are_as_exact_as_the_model(strategy, topology):
    """Of float64: a third of the rows is not a third in float32."""
    import keras

    rows = topology.num_workers + 1
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="float64")
        model = keras.Sequential([keras.Input((1,)), layer])
        loss = keras.losses.MeanSquaredError(dtype="float64")
        model.compile(keras.optimizers.SGD(0.5), loss)
    model.fit(np.ones([rows, 1]), np.full([rows, 1], -1.0), batch_size=rows, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], -1.0, rtol=1e-14)


def test_a_worker_without_a_seed_beside_others_draws_its_own(comm, topology):
    import tf_keras

    tf.random.set_seed(None if topology.rank else 3)
    strategy = tss.SparseStrategy()
    dropout = tf_keras.layers.Dropout(0.5)
    drawn = strategy.run(tf.function(lambda: dropout(tf.ones([100]), training=True)))
    tf.random.set_seed(0)
    assert len(np.unique(comm.all_gather(drawn[tf.newaxis]), axis=0)) == topology.num_workers
