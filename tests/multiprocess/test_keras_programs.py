"""Programs as users of Keras write them: metrics, steps, noise, orders and stops of their own."""

import random
import time

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tf_sparse_strategy.embedding import slices


def rows(number):
    return np.arange(number, dtype="float32")[:, np.newaxis]


class Seen(keras3.callbacks.Callback):
    """The x of each batch of one worker, by epoch; of models that keep it in `last`."""

    def on_train_begin(self, logs=None):
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append(self.model.last.numpy().ravel().tolist())


class Noting(keras3.Model):
    """Keeps what it sees."""

    def __init__(self, worker_rows):
        super().__init__()
        mean = tf.VariableAggregation.MEAN
        self.last = tf.Variable(tf.zeros([worker_rows, 1]), trainable=False, aggregation=mean)

    def call(self, x):
        return x

    def train_step(self, data):
        self.last.assign(data[0])
        return {"loss": tf.reduce_mean(data[0])}


@pytest.mark.parametrize("seed", [None, 3])
def test_arrays_are_shuffled_anew_in_each_epoch(comm, topology, seed):
    """Where the user has set no seed: ours, the same on all workers, would make TensorFlow's epochs alike."""
    tf.random.set_seed(seed)
    strategy = tss.SparseStrategy()
    x = rows(16 * topology.num_workers)
    with strategy.scope():
        model = Noting(4)
        model.compile("sgd")
    seen = Seen()
    epochs = []
    for _ in range(2):
        model.fit(x, x, batch_size=4 * topology.num_workers, epochs=2, verbose=0, callbacks=[seen])
        epochs += seen.epochs
    if topology.num_workers > 1:  # the variable has the mean of the workers' rows
        oracle.assert_identical(comm, np.array(epochs))
        assert len({str(epoch) for epoch in epochs}) == (4 if seed is None else 1)
    elif seed is None:
        assert len({str(epoch) for epoch in epochs}) == 4


def test_a_metric_from_outside_the_scope_is_refused(strategy, topology, keras):
    """It would see one worker's rows, and callbacks decide by that."""
    outside = keras.metrics.MeanAbsoluteError(name="outside")
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", weighted_metrics=[outside])
    if topology.num_workers == 1:
        model.fit(rows(4), rows(4), verbose=0)
        return
    with pytest.raises(ValueError, match=r"'outside' .* inside `with strategy.scope"):
        model.fit(rows(8), rows(8), verbose=0)


def test_a_model_without_call_whose_step_builds_it(comm, strategy, topology):
    """As Keras's own GAN: Keras would call it to build it."""

    class Gan(keras3.Model):
        def __init__(self):
            super().__init__()
            self.generator, self.discriminator = keras3.layers.Dense(1), keras3.layers.Dense(1)

        def train_step(self, data):
            real, *_ = data
            with tf.GradientTape() as tape:
                fake = self.generator(tf.ones_like(real))
                loss = tf.reduce_mean(self.discriminator(fake) ** 2)
                loss /= strategy.num_replicas_in_sync
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

    with strategy.scope():
        model = Gan()
        model.compile(keras3.optimizers.SGD(0.1))
    x = rows(4 * topology.num_workers)
    # More than (x, y, weight).
    data = tf.data.Dataset.from_tensor_slices((x, x, x, x)).batch(2 * topology.num_workers)
    model.fit(data, epochs=2, verbose=0)
    oracle.assert_identical(comm, np.concatenate([w.ravel() for w in model.get_weights()]))


def test_workers_draw_different_noise_in_a_step(comm, strategy, topology):
    """By seed generators and dropout; what they draw outside is the same."""
    generator_seed, ones = 5, tf.ones([1, 64])
    with strategy.scope():
        generator = keras3.random.SeedGenerator(generator_seed)
        dropout = keras3.layers.Dropout(0.5, seed=7)

    def noise():
        return keras3.random.normal([1, 64], seed=generator), dropout(ones, training=True)

    for of_one in strategy.run(tf.function(noise)):
        of_all = strategy.gather(of_one, axis=0).numpy()
        assert len({row.tobytes() for row in of_all}) == topology.num_workers
    oracle.assert_identical(comm, np.array(generator.state))
    outside = keras3.random.normal([4], seed=generator)
    oracle.assert_identical(comm, np.array(outside))


@pytest.mark.parametrize("compiled", [tf.function, lambda fn: fn], ids=["graph", "eager"])
def test_layers_of_tf_keras_draw_different_noise_in_a_step(comm, strategy, topology, compiled):
    """And leave TensorFlow's own generator in step, by which workers decide alike."""
    with strategy.scope():
        layers = [tf_keras.layers.Dropout(0.5), tf_keras.layers.Dropout(0.5, seed=7)]

    def step():
        return [layer(tf.ones([1, 64]), training=True) for layer in layers], tf.random.uniform([4])

    noise, common = strategy.run(compiled(step))
    for of_one in noise:
        of_all = strategy.gather(of_one, axis=0).numpy()
        assert len(np.unique(of_all, axis=0)) == topology.num_workers
    oracle.assert_identical(comm, np.array(common))


def test_who_stops_at_an_epochs_end_stops_all(strategy, topology, keras):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    last = topology.rank == topology.num_workers - 1
    stops = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", last and epoch == 1)
    )
    x = rows(4 * topology.num_workers)
    history = model.fit(x, x, batch_size=len(x), epochs=5, verbose=0, callbacks=[stops])
    assert history.epoch == [0, 1]


def test_one_worker_that_sees_nan_stops_all(strategy, topology, keras):
    """Of a step of one's own, whose loss is each worker's."""

    class Own(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"loss": tf.reduce_mean(data[0])}

    with strategy.scope():
        model = Own()
        model.compile()
    x = rows(4 * topology.num_workers)
    x[-1] = np.nan  # of the last worker
    data = np.concatenate([x, rows(len(x))])
    seen = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    calls = [keras.callbacks.TerminateOnNaN(), count]
    model.fit(data, data, batch_size=len(x), epochs=3, shuffle=False, verbose=0, callbacks=calls)
    assert seen == [0]


def test_components_of_different_numbers_of_rows_are_refused(strategy, topology):
    if topology.num_workers == 1:
        return
    data = tf.data.Dataset.from_tensors((tf.ones([8, 1]), tf.ones([6, 1])))
    free = tf.data.Dataset.from_generator(
        lambda: iter([(np.ones([8, 1]), np.ones([6, 1]))]),
        output_signature=(tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1])),
    )
    for dataset in (data, free):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="different numbers of rows"):
            next(iter(strategy.experimental_distribute_dataset(dataset)))


@pytest.mark.parametrize("kind", ["python", "numpy", "tensorflow", "keras"])
def test_a_table_that_the_first_worker_draws_leaves_generators_in_step(
    comm, strategy, topology, kind, shared_tmp
):
    """Shuffles that follow must agree, and what follows in the program be the same on all."""
    draw = {
        "python": lambda shape: tf.fill(shape, random.random()),
        "numpy": lambda shape: tf.constant(np.random.normal(size=shape)),
        "tensorflow": lambda shape: tf.random.normal(shape),
        "keras": lambda shape: keras3.random.normal(shape),
    }[kind]

    def initializer(shape, dtype=None):
        return tf.cast(draw(shape), dtype or "float32")

    keras3.src.backend.common.global_state.clear_session()
    with strategy.scope():
        ids = keras3.Input([2], dtype="int32")
        table = tss.layers.ShardedEmbedding(8, 4, embeddings_initializer=initializer)
        again = tss.layers.ShardedEmbedding(8, 4, embeddings_initializer=initializer)
        x = keras3.layers.Flatten()(keras3.layers.add([table(ids), again(ids)]))
        model = keras3.Model(ids, keras3.layers.Dense(1, kernel_initializer=initializer)(x))
        model.compile("adam", "mse")
    first, second = table.get_weights()[0], again.get_weights()[0]
    assert (first != second).any()
    of_frameworks = [float(tf.random.uniform([])), float(keras3.random.uniform([]))]
    drawn = [random.random(), np.random.rand(), *of_frameworks]
    oracle.assert_identical(comm, np.array(drawn))
    model.fit(np.zeros([4 * topology.num_workers, 2], "int32"), rows(4 * topology.num_workers), verbose=0)
    model.save(shared_tmp / f"{kind}.keras")
    with strategy.scope():
        loaded = keras3.models.load_model(
            shared_tmp / f"{kind}.keras", custom_objects={"initializer": initializer}, compile=False
        )
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_gradients_of_other_variables_of_one_shape_are_refused(strategy, topology):
    """Experts that each worker's own batch chooses: each would be given what others' experts learn."""

    class Routed(keras3.Model):
        def __init__(self):
            super().__init__()
            self.experts = [keras3.layers.Dense(1), keras3.layers.Dense(1)]

        def call(self, x):
            return self.experts[topology.rank % 2](x)

    with strategy.scope():
        model = Routed()
        for expert in model.experts:
            expert.build([None, 1])
        model.compile("sgd", "mse", run_eagerly=True)
    x = rows(4 * topology.num_workers)
    if topology.num_workers == 1:
        model.fit(x, x, verbose=0)
        return
    with pytest.raises(ValueError, match="the workers differ:\n  gradient 0"):
        model.fit(x, x, verbose=0)


@pytest.mark.parametrize("policy", ["AUTO", "FILE"])
def test_rows_that_are_counted_are_those_of_all_files(comm, strategy, topology, shared_tmp, policy, caplog):
    """By `take` and `skip`: else rows of the validation would be trained on, or nobody's."""
    if topology.num_workers == 1:
        return
    paths = [shared_tmp / str(number) for number in range(topology.num_workers)]
    if topology.rank == 0:
        for number, path in enumerate(paths):
            path.write_text("".join(f"{10 * number + line}\n" for line in range(10)))
    comm.barrier()
    lines = tf.data.TextLineDataset([str(path) for path in paths]).map(tf.strings.to_number)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    seen = []
    for part in (lines.take(6), lines.skip(6)):
        data = part.batch(2 * topology.num_workers, drop_remainder=policy == "FILE").with_options(options)
        distributed = strategy.experimental_distribute_dataset(data)
        local = [strategy.experimental_local_results(x)[0] for x in distributed]
        seen.append(sorted(comm.all_gather(tf.concat(local, axis=0)).numpy().tolist()))
    if policy == "FILE":
        assert ("workers see their own files alone" in caplog.text) == (topology.rank == 0)
        return
    everything = list(range(10 * topology.num_workers))
    assert seen == [everything[:6], everything[6:]]


def test_an_optimizer_applied_outside_a_step_tells_of_it(strategy, topology):
    """Each worker would train a model of its own."""
    with strategy.scope():
        variable = keras3.Variable([1.0])
        optimizer = keras3.optimizers.AdamW(0.1)
        optimizer.build([variable])
    if topology.num_workers == 1:
        optimizer.apply([tf.ones([1])], [variable])
        return
    with pytest.warns(UserWarning, match=r"outside strategy\.run"):
        optimizer.apply([tf.ones([1])], [variable])
    with strategy.scope(), pytest.raises(RuntimeError, match=r"call strategy\.run"):
        optimizer.apply([tf.ones([1])], [variable])


class Shuffled(keras3.utils.PyDataset):
    """Whose threads draw random numbers, of which they use more or fewer."""

    def __init__(self):
        super().__init__(workers=3, max_queue_size=4)
        self.order, self.orders = np.arange(8), []

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        for _ in range(np.random.randint(1, 50)):
            time.sleep(np.random.rand() * 1e-4)
        return np.full([4, 1], self.order[index], "float32"), np.ones([4, 1], "float32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)
        self.orders.append(self.order.tolist())


def test_a_pydataset_whose_threads_draw_is_shuffled_alike(comm, strategy):
    with strategy.scope():
        model = keras3.Sequential([keras3.Input([1]), keras3.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = Shuffled()
    model.fit(data, epochs=4, verbose=0)
    oracle.assert_identical(comm, np.array(data.orders))


def test_float8_scales_are_those_of_all_rows(comm, strategy, topology):
    with strategy.scope():
        model = keras3.Sequential([keras3.Input([4]), keras3.layers.Dense(4), keras3.layers.Dense(1)])
        model.quantize("float8")
        model.compile("sgd", "mse")
    x = np.random.default_rng(topology.num_workers).normal(size=[8 * topology.num_workers, 4])
    model.fit(x, x[:, :1], batch_size=len(x) // 2, epochs=2, shuffle=False, verbose=0)
    weights = [slices.local(w.value).numpy().ravel() for w in model.weights]
    oracle.assert_identical(comm, np.concatenate(weights).astype("float32"))


class OwnStep(keras3.Model):
    """A step of its own around an inner model, without a `call`; and a metric that holds others."""

    def __init__(self, held=None):
        super().__init__()
        self.body = keras3.Sequential([keras3.Input([1]), keras3.layers.Dense(1)])
        self.seen, self.held = ByClass(), held
        self.built = True

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.body(data[0]) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        optimizer = self.held or self.optimizer
        optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class ByClass(keras3.metrics.Mean):
    def __init__(self):
        super().__init__(name="seen")
        self.metrics = {name: keras3.metrics.Mean(name=name) for name in "ab"}


@pytest.mark.parametrize("overlap", [None, tss.overlap.DeAR()], ids=str)
@pytest.mark.parametrize("held", [False, True])
def test_a_backup_finds_the_optimizer_of_a_model_without_call(topology, shared_tmp, held, overlap):
    """Built before it is restored, or its slots and steps would begin anew; not one that nobody uses."""

    def trained(epochs):
        with tss.SparseStrategy(overlap=overlap).scope():
            optimizer = keras3.optimizers.Adam(0.1)
            model = OwnStep(optimizer if held else None)
            if held:
                optimizer.build(model.trainable_variables)
                model.compile()
            else:
                model.compile(optimizer)
        stop = keras3.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: _stop_at(epoch))
        backup = keras3.callbacks.BackupAndRestore(str(shared_tmp / "backup"))
        x = rows(4 * topology.num_workers)
        try:
            model.fit(x, x, batch_size=len(x), epochs=epochs, verbose=0, callbacks=[backup, stop])
        except KeyboardInterrupt:
            pass
        return int(optimizer.iterations.numpy())

    def _stop_at(epoch):
        if stopping and epoch == 2:
            raise KeyboardInterrupt

    stopping = True
    assert trained(3) == 3
    stopping = False
    assert trained(5) == 5
