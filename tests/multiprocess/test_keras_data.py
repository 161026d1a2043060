"""Data through Keras's `fit`, `evaluate` and `predict`: every batch once, every row of what comes out."""

from contextlib import nullcontext

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.thorough import thorough_if

STEPS, BATCH = 20, 4


class Numbered(keras3.utils.PyDataset):
    """Batch i is made of i alone."""

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return np.full([BATCH, 1], index, "float32"), np.full([BATCH, 1], index, "float32")


class Seen(keras3.metrics.Metric):
    """How often each batch was seen, by any row."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rows = self.add_weight(shape=(STEPS,), initializer="zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        number = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        self.rows.assign_add(tf.reduce_sum(tf.one_hot(number, STEPS), axis=0))

    def result(self):
        return tf.reduce_max(tf.abs(self.rows - BATCH))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("build", thorough_if(lambda build: build, [True, False]))
def test_a_pydataset_with_workers_gives_each_batch_once(strategy, workers, build):
    """Keras takes a batch to infer shapes from; what waits in the queue comes again in its next run."""
    data = Numbered(workers=workers, use_multiprocessing=False, max_queue_size=10)
    with strategy.scope():
        layers = [keras3.Input([1])] if build else []
        model = keras3.Sequential([*layers, keras3.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Seen(name="seen")])
    for _ in range(2):
        assert model.evaluate(data, verbose=0, return_dict=True)["seen"] == 0
    logs = model.fit(data, epochs=2, validation_data=Numbered(workers=workers), verbose=0).history
    assert logs["seen"] == logs["val_seen"] == [0, 0]


@pytest.mark.parametrize("what", ["rows", "steps"])
def test_workers_must_make_as_many_steps(keras, strategy, topology, what):
    """Each has loaded other rows, or counts the steps of its part."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    few = 4 if topology.rank else 2
    rows, steps = (np.ones([few * BATCH, 1]), None) if what == "rows" else (np.ones([8 * BATCH, 1]), few)
    match = r"steps of an epoch: 2 on rank 0; 4 on rank 1"
    with pytest.raises(ValueError, match=match) if topology.num_workers > 1 else nullcontext():
        model.fit(rows, rows, batch_size=BATCH, steps_per_epoch=steps, verbose=0)
    model.fit(np.ones([8, 1]), np.ones([8, 1]), batch_size=BATCH, verbose=0)


def test_a_generator_is_read_from_its_beginning(comm, topology, strategy):
    taken = []

    def numbers():
        for number in range(2 * STEPS):
            taken.append(number)
            yield np.full([BATCH, 1], number, "float32"), np.ones([BATCH, 1], "float32")

    class Inputs(keras3.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.sums = []

        def on_train_batch_end(self, batch, logs=None):
            self.sums.append(float(self.model.total.numpy()))

    class Adds(keras3.Model):
        def build(self, shape):
            self.scale = self.add_weight(shape=(1,), initializer="ones")
            self.total = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)

        def call(self, x):
            self.total.assign(tf.reduce_mean(x))
            return x * self.scale

    with strategy.scope():
        model = Adds()
        model.compile("sgd", "mse", run_eagerly=False)
    inputs = Inputs()
    model.fit(numbers(), steps_per_epoch=STEPS, epochs=1, verbose=0, callbacks=[inputs])
    assert inputs.sums == [float(i) for i in range(STEPS)]


def test_inputs_of_any_length_still_build_a_model(strategy):
    """Only a batch tells the shapes of weights."""
    data = tf.data.Dataset.from_generator(
        lambda: ((np.ones([BATCH, 3], "float32"), np.ones([BATCH, 1], "float32")) for _ in range(3)),
        output_signature=(tf.TensorSpec([None, None]), tf.TensorSpec([None, 1])),
    )
    with strategy.scope():
        model = keras3.Sequential([keras3.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(data, verbose=0)
    assert model.layers[0].kernel.shape == (3, 1)


@pytest.mark.parametrize("rows", [25, 24])
def test_a_loss_as_a_metric_is_that_of_all_rows(comm, strategy, rows):
    """With a tail of one row, and in batches that are divided evenly, which are not tagged."""

    def run(scope):
        with scope():
            model = oracle.mlp(keras3)
            huber = keras3.losses.Huber()

            def own(y, predicted):
                return 2 * huber(y, predicted)

            metrics = [huber, own, "mae", keras3.metrics.MeanSquaredError()]
            model.compile("sgd", "mse", metrics=metrics)
        x, y = oracle.regression(rows)
        settings = {"batch_size": 8, "validation_batch_size": 8, "shuffle": False, "verbose": 0}
        return oracle.outcome(model, model.fit(x, y, validation_data=(x, y), epochs=2, **settings))

    oracle.compare(comm, strategy, run)


@pytest.mark.parametrize("rows", [1, 13])
def test_predictions_with_another_number_of_rows_than_the_inputs(strategy, rows):
    with strategy.scope():
        inputs = keras3.Input([6])
        model = keras3.Model(inputs, keras3.ops.reshape(inputs, [-1, 2]))
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype("float32")
    np.testing.assert_array_equal(model.predict(x, batch_size=4, verbose=0), x.reshape(-1, 2))


def test_ragged_predictions(strategy):
    lengths = [[2, 0, 1], [3], [], [1, 1], [0]]
    ids = tf.ragged.constant(lengths, dtype=tf.int32)

    class Rows(keras3.Model):
        def predict_step(self, data):
            x = data[0] if isinstance(data, tuple) else data
            return tf.ragged.map_flat_values(lambda v: 2 * v, x)

    with strategy.scope():
        model = Rows()
        model.compile()
    data = tf.data.Dataset.from_tensor_slices(ids).batch(3)
    found = model.predict(data, verbose=0)
    assert found.to_list() == (2 * ids).to_list()


@pytest.mark.parametrize("batch", [4, 3])
def test_predictions_of_words_and_of_numbers_beside_them(topology, strategy, batch):
    """Labels by name; a loss that is one number, which Keras keeps for each batch."""
    words = ["", "zwei", "d\u00f6rt \u00e4 ", "vier"]

    class Model(keras3.Model):
        def call(self, x):
            ids = tf.cast(x[:, 0], tf.int32)
            named = tf.gather(tf.constant(words), ids % 4)
            names = tf.stack([named, named + "!"], axis=1)
            return {"names": names, "mean": tf.reduce_mean(x), "two": tf.constant(2)}

    with strategy.scope():
        model = Model()
    x = np.arange(11, dtype="float32")[:, np.newaxis]
    rows = batch * topology.num_workers
    found = model.predict(x, batch_size=rows, verbose=0)
    names = [[words[i % 4].encode(), words[i % 4].encode() + b"!"] for i in range(11)]
    assert found["names"].tolist() == names
    means = [x[first : first + rows].mean() for first in range(0, 11, rows)]
    np.testing.assert_allclose(found["mean"], means if len(means) > 1 else means[0], rtol=1e-6)
    assert np.ravel(found["two"]).tolist() == [2] * len(means)


@pytest.mark.parametrize("kind", ["padded", "sparse"])
def test_predictions_that_cannot_be_gathered_say_why(topology, strategy, kind):
    class Rows(keras3.Model):
        def predict_step(self, data):
            x = data[0] if isinstance(data, tuple) else data
            if kind == "sparse":
                return tf.sparse.from_dense(x)
            return tf.tile(x, [1, tf.cast(x[0, 0], tf.int32)])

    with strategy.scope():
        model = Rows()
        model.compile()
    x = np.arange(1.0, 2 * topology.num_workers + 1, dtype="float32")[:, np.newaxis]
    if topology.num_workers == 1:
        model.predict(x, verbose=0)
        return
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match="other dimensions|SparseTensor"):
        model.predict(x, verbose=0)


class Shuffled(tf_keras.utils.Sequence):
    """Shuffled by itself after each epoch, whoever calls."""

    def __init__(self):
        self.order, self.read = np.arange(STEPS), []

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        self.read.append(self.order[index])
        return np.full([BATCH, 1], self.order[index], "float32"), np.ones([BATCH, 1], "float32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def test_a_sequence_of_tf_keras_is_read_alike(comm, partners, strategy):
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Input([1]), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = Shuffled()
    with pytest.warns(UserWarning, match="read by one"):
        model.fit(data, epochs=4, workers=3, verbose=0)
    oracle.assert_identical(comm, np.array(data.read))


def test_steps_per_execution_of_each_workers_own_are_refused(topology, strategy):
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Input([1]), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution="auto")
    x = np.ones([4 * topology.num_workers, 1], "float32")
    refused = pytest.raises(ValueError, match="pass a number") if topology.num_workers > 1 else nullcontext()
    with refused:
        model.fit(x, x, verbose=0)


def test_tf_keras_modules_load_together_too():
    """`tf.keras.models` is another module than `tf_keras.models`, and has had the function before."""
    import tf_keras
    from tf_keras.api._v2.keras import models, saving

    tss.SparseStrategy()
    for module in (models, saving, tf_keras.models, keras3.models, keras3.saving):
        assert hasattr(module.load_model, "_sparse_strategy_hook")


@pytest.mark.parametrize("seed", [None, 3])
def test_tf_keras_shuffles_arrays_otherwise_in_each_fit(comm, topology, seed):
    """Where the user has set no seed: by ours, the same on all workers, calls of `fit` would be alike."""
    class Noting(tf_keras.Model):
        def train_step(self, data):
            return {"loss": tf.reduce_mean(data)}  # of all rows: few batches have the same

    tf.random.set_seed(seed)
    strategy = tss.SparseStrategy()
    with strategy.scope():
        model = Noting()
        model.compile()
    x = np.random.default_rng(0).random([64 * topology.num_workers, 1], np.float32)
    options = {"batch_size": 4 * topology.num_workers, "epochs": 2, "verbose": 0}
    fits = [model.fit(x, **options).history["loss"] for _ in range(2)]  # of each epoch's last batch
    oracle.assert_identical(comm, np.array(fits))
    if seed is None:
        assert len({*fits[0], *fits[1]}) == 4
    elif topology.num_workers > 1:
        assert fits[0] == fits[1]
    tf.random.set_seed(0)


def test_words_of_tf_keras(comm):
    """The vocabulary that a layer has learnt is among its variables, and is none."""
    words, y = np.array([["a b"], ["b c"]] * 8), np.arange(16, dtype="float32")
    trained = []
    for scope in (nullcontext(), tss.SparseStrategy().scope()):
        with scope:
            lookup = tf_keras.layers.TextVectorization(output_mode="multi_hot", pad_to_max_tokens=False)
            lookup.adapt(words)
            dense = tf_keras.layers.Dense(1, kernel_initializer="ones")
            model = tf_keras.Sequential([tf_keras.Input([1], dtype="string"), lookup, dense])
            model.compile("sgd", "mse")
        model.fit(words, y, batch_size=8, shuffle=False, verbose=0)
        trained.append(model.trainable_weights)
    for alone, together in zip(*trained, strict=True):
        np.testing.assert_allclose(together.numpy(), alone.numpy(), rtol=1e-5)


class Positions(keras3.layers.Layer):
    """Adds an embedding of where something is to what it is."""

    def __init__(self, number, width):
        super().__init__()
        self.table = keras3.layers.Embedding(number, width, embeddings_initializer="ones")
        self.places = keras3.ops.arange(number)

    def call(self, x):
        return x + self.table(self.places)


@pytest.mark.parametrize("options", [{}, {"global_clipnorm": 0.2}], ids=str)
@pytest.mark.parametrize("rows", [16, 17])  # of the last batch one worker has the only row
@pytest.mark.parametrize("kind", [keras3.optimizers.Adam, keras3.optimizers.SGD])
def test_positions_are_learnt_as_in_one_process(comm, kind, rows, options):
    """Their rows' gradients are sums over the batch, of which Adam and clipping want the squares."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[rows, 4, 3]).astype("float32"), rng.normal(size=[rows]).astype("float32")
    trained = []
    for scope in (nullcontext(), tss.SparseStrategy().scope()):
        with scope:
            keras3.utils.set_random_seed(1)
            layers = [keras3.layers.Dense(3), Positions(4, 3), keras3.layers.Flatten()]
            model = keras3.Sequential([keras3.Input([4, 3]), *layers, keras3.layers.Dense(1)])
            model.compile(kind(0.05, **options), "mse")
        model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    oracle.assert_same(*({str(i): w for i, w in enumerate(weights)} for weights in reversed(trained)))
