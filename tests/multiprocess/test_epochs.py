"""Epochs end with the data, whatever number of batches each worker has, and their logs are everybody's."""

import time

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.multiprocess import oracle


@pytest.fixture
def model(keras, strategy):
    with strategy.scope():
        layers = [keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        model = keras.Sequential(layers)
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    return model


def ones(rows):
    return tf.data.Dataset.from_tensor_slices((np.ones([rows, 1], "float32"), np.ones([rows, 1], "float32")))


def of_unknown_length(rows):
    """Ones, whose end is noticed late."""

    def generate():
        yield from np.ones([rows, 1], "float32")
        time.sleep(0.3)

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([1]))


def steps_of(keras, model, data, **options):
    """In two epochs."""
    ended = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ended.append(batch))
    model.fit(data, epochs=2, callbacks=[count], verbose=0, **options)
    return len(ended)


def test_data_from_a_function_ends_with_the_shortest(strategy, keras, model):
    """Of known lengths, by which Keras 3 would have one worker end, and the others wait for it."""
    if keras.__name__ == "tf_keras":
        with pytest.raises(ValueError, match="you must specify the number of steps"):
            model.fit(strategy.distribute_datasets_from_function(lambda context: ones(6).batch(2)))
        return
    dataset = strategy.distribute_datasets_from_function(
        lambda context: ones(6 + 2 * context.input_pipeline_id).batch(2)
    )
    assert int(dataset.cardinality) == 3
    assert steps_of(keras, model, dataset) == 6 == int(model.optimizer.iterations.numpy())


def test_the_call_that_finds_no_more_data_changes_nothing(comm, topology, keras, strategy):
    """Decay and counts, which need no data, would run before it is known, on some workers, by chance."""

    rows, batch = 6 * topology.num_workers, 2 * topology.num_workers
    unknown = of_unknown_length(rows).map(lambda x: (x, x)).batch(batch)
    known, results = ones(rows).batch(batch), []
    for data in (unknown, known):
        with strategy.scope():
            layers = [keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5), "mse")
        assert steps_of(keras, model, data) == 6
        results.append([*model.get_weights(), model.optimizer.iterations.numpy()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    oracle.assert_identical(comm, np.ravel(results[0][0]))


def test_the_call_that_finds_no_more_data_changes_nothing_in_ones_own_loop(topology, strategy):
    """Although the rate is there at once."""
    import keras

    data = of_unknown_length(6 * topology.num_workers).batch(2 * topology.num_workers)
    data = strategy.experimental_distribute_dataset(data)
    with strategy.scope():
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
        optimizer.build([weight])

    def step(rate, x):
        optimizer.apply([rate * tf.reduce_mean(x, axis=0)], [weight])

    @tf.function
    def train(iterator, rate):
        strategy.run(step, args=(rate, next(iterator)))

    iterator, steps = iter(data), 0
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            train(iterator, tf.constant(1.0))
            steps += 1
    assert steps == 3 == int(optimizer.iterations.numpy())


def own_rows(topology, tmp):
    """OFF: every worker has a dataset of its own, of known length."""
    return ones(6 + 4 * topology.rank).batch(2 * topology.num_workers)


def own_files(topology, tmp):
    """FILE: of files of different lengths, with the number of batches that they have all together."""
    p, paths = topology.num_workers, [tmp / str(rank) for rank in range(topology.num_workers)]
    rows = [6 + 4 * rank for rank in range(p)]
    if topology.rank == 0:
        for path, number in zip(paths, rows, strict=True):
            path.write_text("1\n" * number)
    lines = tf.data.TextLineDataset([str(path) for path in paths])
    data = lines.map(lambda x: ([tf.strings.to_number(x)], [1.0])).batch(2 * p)
    return data.apply(tf.data.experimental.assert_cardinality(-(-sum(rows) // (2 * p))))


@pytest.mark.parametrize("policy, make", [("OFF", own_rows), ("FILE", own_files)])
def test_every_row_counts_where_some_have_more(
    comm, topology, partners, keras, model, shared_tmp, policy, make
):
    """Keras counts batches before they are divided."""
    data, options = make(topology, shared_tmp), tf.data.Options()
    comm.barrier()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    expected, data = 2 * (3 + 2 * (topology.num_workers - 1)), data.with_options(options)
    if keras is tf_keras and topology.num_workers > 1:  # it ended epochs where they were no multiple
        model.compile("sgd", "mse", steps_per_execution=2)
        with pytest.raises(ValueError, match="you must specify the number of steps"):
            model.fit(data, verbose=0)
        model.compile(keras.optimizers.SGD(0.0), "mse")
    assert steps_of(keras, model, data) == expected
    if policy == "FILE":  # which have as many batches everywhere, before they are divided
        batches = int(data.cardinality())
        assert steps_of(keras, model, data, steps_per_epoch=batches) == 2 * batches


def test_logs_of_ones_own_step_are_the_mean_of_all(comm, topology, keras, strategy):
    """Of epochs and of validation, so that callbacks decide alike."""

    class Own(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"own": tf.reduce_mean(data[0]), "count": tf.constant(3)}

        def test_step(self, data):
            return {"own": 2 * tf.reduce_mean(data[0])}

    with strategy.scope():
        model = Own()
        model.compile()
    x = np.arange(4 * topology.num_workers, dtype="float32")[:, np.newaxis]
    history = model.fit(x, x, batch_size=len(x), validation_data=(x, x), shuffle=False, verbose=0).history
    assert history["own"] == pytest.approx([x.mean()])
    assert history["val_own"] == pytest.approx([2 * x.mean()])
    assert history["count"] == [3]
    x = np.concatenate([x, [[np.pi]]]).astype("float32")  # a last batch of one row, on one worker
    history = model.fit(x, x, batch_size=len(x) - 1, shuffle=False, verbose=0).history
    assert history["own"] == pytest.approx([np.pi])


@pytest.mark.parametrize("form", ["each metric's", "beside a number"])
def test_metrics_in_logs_of_ones_own_step_are_those_of_all(comm, topology, strategy, form):
    """A dictionary of Keras's compiled metrics within the logs, or their results beside another number."""
    import keras

    class Own(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            x, y = data
            self.compute_metrics(x, y, x)
            if form == "each metric's":
                return {metric.name: metric.result() for metric in self.metrics}
            return {**self.get_metrics_result(), "largest": tf.reduce_max(x)}

        test_step = train_step

    class Vector(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_pred, sample_weight)

        def result(self):
            return tf.stack([super().result(), 1.0])

    with strategy.scope():
        model = Own()
        model.compile(loss="mse", metrics=["mae", Vector(name="vector")])
    x = np.arange(4 * topology.num_workers + 1, dtype="float32")[:, np.newaxis]  # a last batch of one row
    data = (x, np.zeros_like(x))
    options = {"batch_size": len(x) - 1, "shuffle": False, "verbose": 0}
    history = model.fit(*data, validation_data=data, **options).history
    for name in ("mae", "val_mae"):
        assert history[name] == pytest.approx([x.mean()])
        oracle.assert_identical(comm, np.array(history[name]))
    for name in ("vector", "val_vector"):
        np.testing.assert_allclose(history[name], [[x.mean(), 1.0]], rtol=1e-6)
    if form == "beside a number":
        assert history["largest"] == [x.max()]


def test_trackers_under_other_names_are_those_of_all(comm, topology, keras, strategy):
    """As in Keras's own VAE; the last batch has rows for one worker alone."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.tracker = keras.metrics.Mean(name="total_loss")

        def call(self, x):
            return x

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            self.tracker.update_state(data[0])
            return {"loss": self.tracker.result(), "rate": tf.constant(0.25)}

        test_step = train_step

    with strategy.scope():
        model = Own()
        model.compile()
    x = np.arange(4 * topology.num_workers + 1, dtype="float32")[:, np.newaxis]
    options = {"batch_size": len(x) - 1, "shuffle": False, "verbose": 0}
    history = model.fit(x, x, validation_data=(x, x), **options).history
    for name in ("loss", "val_loss"):
        assert history[name] == pytest.approx([x.mean()])
    assert history["rate"] == [0.25]


def test_what_has_only_the_name_of_a_metric_is_averaged(topology, strategy):
    import keras

    class Own(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"loss": tf.reduce_mean(data[0]), "other": tf.constant(1.0)}

    with strategy.scope():
        model = Own()
        model.compile(loss="mse")
    x = np.arange(4 * topology.num_workers, dtype="float32")[:, np.newaxis]
    history = model.fit(x, x, batch_size=len(x), shuffle=False, verbose=0).history
    assert history["loss"] == pytest.approx([x.mean()])


def test_predictions_of_a_batch_by_itself_are_its_rows(topology, keras, strategy):
    with strategy.scope():
        model = oracle.mlp(keras)
        model.compile()
    for rows in (2 * topology.num_workers + 1, 1):
        x, _ = oracle.regression(rows)
        expected = model.predict(x, verbose=0)
        np.testing.assert_allclose(model.predict_on_batch(x), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_by_itself_is_divided_by_rows(comm, strategy):
    """Of tf_keras, whose `train_on_batch` takes the global batch; also fewer rows than workers."""
    x, y = oracle.regression(5)

    def run(scope):
        with scope():
            model = oracle.mlp(tf_keras)
            model.compile(optimizer=tf_keras.optimizers.SGD(0.5), loss="mse")
        for rows in (5, 1):
            model.train_on_batch(x[:rows], y[:rows])
        return {str(i): weights for i, weights in enumerate(model.get_weights())}

    oracle.compare(comm, strategy, run)


def test_an_optional_input_that_is_not_given(strategy):
    import keras

    class Sum(keras.layers.Layer):
        def call(self, a, b):
            return a if b is None else a + b

    with strategy.scope():
        inputs = [keras.Input([2]), keras.Input([2], optional=True)]
        model = keras.Model(inputs, keras.layers.Dense(1)(Sum()(*inputs)))
        model.compile("sgd", "mse")
    x = np.arange(14.0).reshape(7, 2)
    model.fit([x, None], x[:, :1], batch_size=4, verbose=0)
    expected = model.predict([x, 0 * x], batch_size=7, verbose=0)
    np.testing.assert_allclose(model.predict([x, None], batch_size=4, verbose=0), expected, rtol=1e-5)
