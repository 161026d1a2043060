"""DataCache under Keras: fit, resuming in the middle of an epoch, logs; and exchanges between nodes."""

import doctest
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import datacache.callbacks
from datacache import exchange
from datacache.callbacks import CacheMonitor, ExchangeCallback, Resume
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)

EPOCHS, BATCH = 3, 16


def model(kind=keras):
    kind.utils.set_random_seed(1)
    drawn = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)] if kind is keras else []
    made = kind.Sequential([kind.layers.Input([100]), *drawn, kind.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


def augment(batch, seed):
    noise = tf.map_fn(lambda s: tf.random.stateless_uniform([100], s), seed, tf.float32)
    return tf.cast(batch["data"], tf.float32) / 256 + noise, tf.cast(batch["number"], tf.float32)[:, None]


class Crash(keras.callbacks.Callback):
    """Ends training after a number of batches, as a preemption would."""

    def __init__(self, after: int):
        super().__init__()
        self._left = after

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def train(cache, directory, callbacks=(), keras=keras, shuffle="local"):
    trained = model(keras)
    resume = Resume(directory, trained, every=4)
    histories = []
    for span in resume.spans(EPOCHS, cache.steps_per_epoch(BATCH)):
        dataset = cache.dataset(BATCH, augment, shuffle=shuffle, start=span.start)
        history = trained.fit(dataset, verbose=0, callbacks=[resume, *callbacks], **span.fit_arguments())
        histories.append(history.history)
    return trained, resume, histories


def check_resumed(cache, tmp_path, after, shuffle="local", again=None):
    """Training that ends after so many batches, and is resumed (with the cache `again`), as if it had not."""
    whole, resume, _ = train(cache, tmp_path / "whole", shuffle=shuffle)
    assert resume.step == 30
    with pytest.raises(KeyboardInterrupt):
        train(cache, tmp_path / "parts", [Crash(after)], shuffle=shuffle)
    resumed, resume, _ = train(again or cache, tmp_path / "parts", shuffle=shuffle)
    assert resume.step == 30
    check_same_weights(whole, resumed)


def check_same_weights(whole, resumed):
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("after", "shuffle"), [(1, "local"), (6, "exchange"), (13, "global"), (13, "exchange"), (28, "exchange")]
)
def test_resumed_training_is_uninterrupted_training(pattern, shm, tmp_path, after, shuffle):
    cache = help_.cache(pattern, shm)
    check_resumed(cache, tmp_path, after, shuffle, again=help_.cache(pattern, shm))
    assert train(cache, tmp_path / "parts")[2] == []  # nothing is left to do


class InAList(keras.Model):
    """Where TensorFlow's checkpoints find no layers."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]

    def call(self, x, training=False):
        normalization, dropout, dense = self.parts
        return dense(dropout(normalization(x, training=training), training=training))


def test_resumed_training_of_layers_in_a_list(pattern, shm, tmp_path, monkeypatch):
    def in_a_list(_):
        keras.utils.set_random_seed(1)
        made = InAList()
        made(tf.zeros([1, 100]))
        made.compile("adam", "mse")
        return made

    monkeypatch.setitem(globals(), "model", in_a_list)
    check_resumed(help_.cache(pattern, shm), tmp_path, after=13)


def by_variable(variable):
    is_kernel = "kernel" in variable.path
    return keras.optimizers.Adam(0.1) if is_kernel else keras.optimizers.SGD(0.1, momentum=0.9)


@pytest.mark.parametrize("kind", ["by a function", "by a map"])
def test_resumed_training_with_optimizers_within_another(pattern, shm, tmp_path, monkeypatch, kind):
    """Whose state TensorFlow's checkpoints do not find."""
    plain = model

    def with_several(keras_):
        made = plain(keras_)
        each = by_variable
        if kind == "by a map":
            each = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1, momentum=0.9))
            each["dense.*"] = keras.optimizers.Adam(0.1)
        made.compile(keras.optimizers.MultiOptimizer(each), "mse")
        return made

    monkeypatch.setitem(globals(), "model", with_several)
    check_resumed(help_.cache(pattern, shm), tmp_path, after=13)


class Stop(keras.callbacks.Callback):
    """At the end of this step of each epoch."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == self._step


def test_no_span_follows_one_that_was_stopped(pattern, shm, tmp_path):
    """The rest of an epoch is a span of its own, and what comes after another."""
    cache = help_.cache(pattern, shm)
    with pytest.raises(KeyboardInterrupt):
        train(cache, tmp_path, [Crash(5)])
    _, resume, histories = train(cache, tmp_path, [Stop(2)])
    assert resume.step == 4 + 3 and len(histories) == 1
    assert train(cache, tmp_path)[1].step == 30


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_a_checkpoint_without_a_position_is_refused(pattern, shm, tmp_path, kind):
    trained = model(kind)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=trained), str(tmp_path), max_to_keep=5)
    written = [manager.save() for _ in range(3)]
    with pytest.raises(ValueError, match="of another model, optimizer, or of other arguments"):
        Resume(tmp_path, trained)
    assert manager.checkpoints == written and all(tf.io.gfile.exists(path + ".index") for path in written)


def test_resumed_training_with_tf_keras(pattern, shm, tmp_path):
    """It asks its callbacks for methods that Keras 3's do not have."""
    cache = help_.cache(pattern, shm)
    whole, _, [logs, *_] = train(cache, tmp_path / "whole", [CacheMonitor(cache)], tf_keras)
    assert logs["datacache_stored"][-1] == 150
    part = model(tf_keras)
    first = Resume(tmp_path / "parts", part)
    part.fit(cache.dataset(BATCH, augment), steps_per_epoch=7, callbacks=[first], verbose=0)
    resumed, resume, _ = train(cache, tmp_path / "parts", keras=tf_keras)
    assert (first.step, resume.step) == (7, 30)
    check_same_weights(whole, resumed)


def test_a_model_that_is_not_built(tmp_path):
    bare = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    bare.compile("sgd", "mse")
    with pytest.raises(ValueError, match="built"):
        Resume(tmp_path, bare)
    for kind in (keras, tf_keras):
        with pytest.raises(ValueError, match="compiled"):
            Resume(tmp_path, kind.Sequential([kind.layers.Input([2]), kind.layers.Dense(1)]))
    with pytest.raises(ValueError, match="every=0"):
        Resume(tmp_path, model(), every=0)


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_calls_of_several_steps_that_do_not_divide_an_epoch(pattern, shm, tmp_path, kind):
    """Keras 3 would make 12 steps of 10, and a run that goes on 10. tf_keras's last call is shorter."""
    trained = kind.Sequential([kind.layers.Input([100]), kind.layers.Dense(1)])
    trained.compile("sgd", "mse", steps_per_execution=4)
    resume = Resume(tmp_path, trained)
    dataset = help_.cache(pattern, shm).dataset(BATCH, augment)
    if kind is keras:
        with pytest.raises(ValueError, match="steps_per_execution=4, which does not divide the 10 steps"):
            trained.fit(dataset, steps_per_epoch=10, verbose=0, callbacks=[resume])
    steps = 8 if kind is keras else 10
    trained.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[resume])
    assert resume.step == steps
    kind.callbacks.CallbackList([resume], model=trained).on_train_begin()  # of a loop of one's own


@pytest.mark.parametrize("kind", [keras, tf_keras])
def test_a_checkpoint_of_another_model_is_refused(pattern, shm, tmp_path, kind):
    """It would restore the position, and leave some weights as they are."""
    cache, directory = help_.cache(pattern, shm), tmp_path / "checkpoints"
    train(cache, directory, keras=kind)
    layers = [kind.layers.Input([100]), kind.layers.Dense(1), kind.layers.Dense(1), kind.layers.Dense(1)]
    larger = kind.Sequential(layers)
    larger.compile("adam", "mse")
    with pytest.raises(ValueError, match="of another model"):
        Resume(directory, larger)


def test_logs(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm)
    monitor = CacheMonitor(cache, str(tmp_path / "logs"))
    dataset = cache.dataset(BATCH, augment)
    history = model().fit(
        dataset, epochs=EPOCHS, steps_per_epoch=10, verbose=0, callbacks=[monitor]
    ).history
    assert history["datacache_stored"][-1] == 150
    assert history["datacache_hit_rate"][0] < 0.7 and history["datacache_hit_rate"][-1] == 1
    assert history["datacache_original_bytes"][-1] == 0 < history["datacache_original_bytes"][0]
    assert history["datacache_memory_bytes"][-1] > 0
    assert history["datacache_bytes_per_second"][-1] > 0
    assert all(0 <= share <= 1 for share in history["datacache_stall_share"])
    (events,) = (tmp_path / "logs").iterdir()
    read = tf.compat.v1.train.summary_iterator(str(events))
    tags = [value.tag for event in read for value in event.summary.value]
    assert tags.count("datacache_stored") == EPOCHS


def test_workers_beside_the_first_write_no_events(pattern, shm, tmp_path, monkeypatch):
    strategy = tf.distribute.get_strategy()
    kind = type(strategy.extended)
    monkeypatch.setattr(kind, "should_save_summary", property(lambda extended: False))
    cache = help_.cache(pattern, shm)
    callbacks = [CacheMonitor(cache, tmp_path / "logs")]
    arguments = {"epochs": 1, "steps_per_epoch": 2, "verbose": 0, "callbacks": callbacks}
    history = model().fit(cache.dataset(BATCH, augment), **arguments).history
    assert "datacache_stored" in history and not (tmp_path / "logs").exists()


def test_rates_are_of_one_epoch(monkeypatch):
    """By counts and a clock that are made up; a second training begins anew."""
    told = [(0, 0, 0, 0.0), (10, 10, 100, 1.0), (10, 20, 300, 2.0), (30, 20, 700, 5.0)]
    told += [(90, 90, 900, 9.0), (91, 93, 1000, 9.0)]
    names = ("memory_hits", "memory_misses", "memory_bytes", "stall_seconds")
    stats = ({**dict(zip(names, numbers, strict=True)), "stored": 5} for numbers in told)
    clock = iter([0.0, 100.0, 102.0, 106.0, 200.0, 204.0])
    monkeypatch.setattr(datacache.callbacks, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monitor = CacheMonitor(types.SimpleNamespace(stats=lambda: next(stats)))
    found = []
    for epochs in (2, 1):
        monitor.on_train_begin()
        for epoch in range(epochs):
            logs = {}
            monitor.on_epoch_end(epoch, logs)
            kinds = ("hit_rate", "bytes_per_second", "stall_share")
            found.append(tuple(logs[f"datacache_{kind}"] for kind in kinds))
    assert found == [(0.0, 100.0, 0.5), (1.0, 100.0, 0.75), (0.25, 25.0, 0.0)]


class Switch:
    """Carries arrays between nodes that are threads of this process."""

    def __init__(self, nodes: int):
        self._nodes, self._barrier = nodes, threading.Barrier(nodes, timeout=60)
        self._table = {}

    def all_to_all(self, node: int, sent):
        for target, array in enumerate(sent):
            self._table[node, target] = array
        self._barrier.wait()
        received = [self._table[source, node] for source in range(self._nodes)]
        self._barrier.wait()
        return received


@pytest.mark.parametrize(
    ("workers", "nodes", "reads_first"), [(2, 2, False), (4, 2, False), (3, 3, False), (2, 2, True)]
)
def test_exchanges_bring_what_the_next_epoch_needs(pattern, tmp_path, workers, nodes, reads_first):
    """Each node has room for its share alone, and after the first epoch reads nothing again."""
    node_of_worker = [worker * nodes // workers for worker in range(workers)]
    switch = Switch(nodes)
    failures = []

    def run(node):
        shm = tmp_path / f"shm{node}"
        shm.mkdir()
        room = {"memory": 75 * 256, "nodes": nodes} if reads_first else {}
        cache = help_.cache(pattern, shm, **room)
        plan = cache.order(12, seed=5, shuffle="exchange", fraction=0.25)
        swap = exchange.Exchange(
            cache, plan, node_of_worker, node, lambda sent: switch.all_to_all(node, sent)
        )
        callback = ExchangeCallback(swap)
        misses = []
        own = [worker for worker, place in enumerate(node_of_worker) if place == node]
        for epoch in range(6):
            if not reads_first:
                callback.on_epoch_begin(epoch)
            seen = []
            for worker in own:
                dataset = cache.dataset(
                    12, None, 5, "exchange", tf.distribute.InputContext(workers, worker, workers),
                    start=epoch * plan.steps_per_epoch, epochs=epoch + 1, fraction=0.25,
                )
                seen += help_.numbers_of(dataset)
            if reads_first:
                callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch)
            # Its share and no more, although shares are exchanged.
            share = len(np.concatenate(seen))
            assert cache.stats()["stored"] == share
            misses.append(cache.stats()["memory_misses"])
        assert misses[0] >= share and set(misses) == {misses[0]}

    def guarded(node):
        try:
            run(node)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[node]) for node in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_moves_agree_and_conserve():
    plan = datacache.callbacks.order.Order(211, 8, 3, "exchange", 0.3)
    for epoch in range(1, 9):
        all_moves = [exchange.moves(epoch, plan, [0, 1, 2, 1], node) for node in range(3)]
        for a in range(3):
            assert sum(map(len, all_moves[a].sends)) == sum(map(len, all_moves[a].receives))
            for b in range(3):
                np.testing.assert_array_equal(all_moves[a].sends[b], all_moves[b].receives[a])


def test_an_exchange_that_fails_says_so(pattern, shm):
    cache = help_.cache(pattern, shm)
    plan = cache.order(8, shuffle="exchange")

    def broken(sent):
        raise ConnectionError("gone")

    swap = exchange.Exchange(cache, plan, [0, 1], 0, broken)
    assert swap.finish() == 0
    swap.start(1)
    with pytest.raises(ConnectionError, match="gone"):
        swap.finish()
    swap.start(2)
    with pytest.raises(ConnectionError, match="gone"):  # of epoch 2, which nobody has finished
        swap.start(3)
    assert swap.finish() == 0
    with pytest.raises(ValueError, match="nothing to exchange"):
        exchange.Exchange(cache, cache.order(8), [0], 0, broken)


def test_the_examples_of_the_callbacks():
    assert doctest.testmod(datacache.callbacks).failed == 0
