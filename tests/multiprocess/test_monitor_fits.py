"""CommunicationMonitor where one `fit` follows another, or stands within it."""

import json

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess.test_monitor import compiled, dataset
from tests.thorough import MOSTLY_KERAS3
from tf_sparse_strategy.communication import Dense, HiTopK, OkTopK, Piecewise


@MOSTLY_KERAS3
def test_a_fit_that_raised_leaves_nothing_to_the_next(topology, keras, shared_tmp):
    def interrupt(batch, logs):
        raise KeyboardInterrupt

    strategy = tss.SparseStrategy(communication=OkTopK(0.1))
    model, gradients = compiled(strategy, keras), strategy.extended.gradients
    sites = strategy.extended.collectives.sites
    arguments = {"trace": shared_tmp / "{rank}.json", "trace_steps": (0, 9), "scheme_freq": 1}
    for goes_on in (True, False):  # with the same monitor, or another
        first = tss.callbacks.CommunicationMonitor(**arguments)
        ends = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(dataset(), callbacks=[first, ends], verbose=0)
        assert sites.timers and (gradients.probe is not None) == (topology.num_workers > 1)
        second = first if goes_on else tss.callbacks.CommunicationMonitor()
        model.fit(dataset(), callbacks=[second], verbose=0)
        assert not sites.timers and gradients.probe is None
        tf.profiler.experimental.start(str(shared_tmp))  # raises where another runs
        tf.profiler.experimental.stop(save=False)


def test_monitors_of_one_fit_leave_each_other_alone(strategy, shared_tmp):
    tracing = tss.callbacks.CommunicationMonitor(trace=shared_tmp / "{rank}.json", trace_steps=(0, 2))
    callbacks = [tracing, tss.callbacks.CommunicationMonitor()]
    logs = compiled(strategy, keras3).fit(dataset(), callbacks=callbacks, verbose=0).history
    assert "computation_stall" in logs


@MOSTLY_KERAS3
def test_two_that_trace_and_look_at_gradients(topology, keras, shared_tmp):
    """One after the other, the same."""
    strategy = tss.SparseStrategy(communication=OkTopK(0.1))
    monitors = [
        tss.callbacks.CommunicationMonitor(
            trace=shared_tmp / f"{begin} {{rank}}.json", trace_steps=(begin, begin + 1), scheme_freq=1
        )
        for begin in (0, 1)
    ]
    seen = []
    between = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: seen.append(logs.get("applied_density"))
    )
    callbacks = [monitors[0], between, monitors[1]]
    logs = compiled(strategy, keras).fit(dataset(), epochs=2, callbacks=callbacks, verbose=0).history
    if topology.num_workers > 1:
        assert seen == logs["applied_density"] and seen[0] > 0
    for begin in (0, 1):
        trace_of_step = json.loads((shared_tmp / f"{begin} {topology.rank}.json").read_text())
        places = [e for e in trace_of_step["traceEvents"] if e.get("cat") == "collective"]
        assert len(places) > 0 or topology.num_workers == 1
        assert all(e["args"]["step"] == begin and e["ts"] < 60e6 for e in places)


@MOSTLY_KERAS3
@pytest.mark.parametrize("built", [True, "nested", False])
def test_models_after_each_other_count_for_themselves(topology, keras, built):
    """Of one that is no more nothing is taken off; those that are not built are so in their first step."""
    layers = [keras.layers.Input([5])] if built else []
    first = OkTopK(0.1)
    if built == "nested":
        first = Piecewise([(0, first), (2, OkTopK(0.2))], unit="step")
    strategy = tss.SparseStrategy(communication=Piecewise([(0, first), (1, Dense())]))
    found = []
    for _ in range(3):
        with strategy.scope():
            model = keras.Sequential([*layers, keras.layers.Dense(4)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        monitor = tss.callbacks.CommunicationMonitor()
        logs = model.fit(dataset(), epochs=2, callbacks=[monitor], verbose=0).history
        found.append(logs.get("scheme_changes"))
        del model, monitor
    expected = [int(built == "nested"), 1]
    assert found == 3 * ([None] if topology.num_workers == 1 else [expected])


def test_a_function_of_the_models_own_is_traced_anew(topology, keras, shared_tmp):
    """By a method that knows nothing of `force`, or keeps nothing itself."""

    class Model(keras.Sequential):
        def make_train_function(self):
            made = super().make_train_function()
            if made is not None:  # tf_keras goes by what is returned
                self.train_function = None
            return made

    with tss.SparseStrategy().scope():
        model = Model([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([8, 3], np.float32)
    for _ in range(2):
        monitor = tss.callbacks.CommunicationMonitor(trace=shared_tmp / "{rank}.json", trace_steps=(0, 1))
        history = model.fit(x, x[:, :1], callbacks=[monitor], verbose=0).history
        assert "overlap_ratio" in history


def test_a_function_that_was_traced_before_has_no_bars(topology, caplog, shared_tmp):
    class Model(keras3.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras3.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        @tf.function
        def train_step(self, data):
            return super().train_step(data)

    with tss.SparseStrategy().scope():
        model = Model()
        model.compile("sgd", "mse")
    x = np.ones([8, 3], np.float32)
    model.fit(x, x[:, :1], verbose=0)
    monitor = tss.callbacks.CommunicationMonitor(trace=shared_tmp / "{rank}.json", trace_steps=(0, 1))
    history = model.fit(x, x[:, :1], callbacks=[monitor], verbose=0).history
    assert ("overlap_ratio" in history) == (topology.num_workers == 1)
    assert ("lacks collectives" in caplog.text) == (topology.num_workers > 1 and topology.rank == 0)


def test_a_fit_that_raised_leaves_nothing_to_another_model(strategy, shared_tmp):
    def interrupt(batch, logs):
        raise KeyboardInterrupt

    sites, first = strategy.extended.collectives.sites, compiled(strategy, keras3)
    tracing = tss.callbacks.CommunicationMonitor(trace=shared_tmp / "{rank}.json", trace_steps=(0, 9))
    with pytest.raises(KeyboardInterrupt):
        ends = keras3.callbacks.LambdaCallback(on_train_batch_end=interrupt)
        first.fit(dataset(), callbacks=[tracing, ends], verbose=0)
    assert sites.timers
    compiled(strategy, keras3).fit(dataset(), callbacks=[tss.callbacks.CommunicationMonitor()], verbose=0)
    assert not sites.timers


def test_a_fit_within_a_callback_leaves_the_outer_one_its_monitor(strategy, keras):
    outer, inner = compiled(strategy, keras), compiled(strategy, keras)

    def within(epoch, logs):
        found = inner.fit(dataset(), callbacks=[tss.callbacks.CommunicationMonitor()], verbose=0)
        assert "bytes_per_step" in found.history

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=within), tss.callbacks.CommunicationMonitor()]
    logs = outer.fit(dataset(), epochs=2, callbacks=callbacks, verbose=0).history
    assert len(logs["bytes_per_step"]) == 2


def test_what_is_trained_counts_after_a_layer_is_thawed(topology, caplog):
    """Not what was trained before it, for whose last sum there is no other."""
    strategy = tss.SparseStrategy(communication=Piecewise([(0, HiTopK(0.1)), (1, Dense())]))
    with strategy.scope():
        body = keras3.layers.Dense(4, trainable=False)
        model = keras3.Sequential([keras3.Input([5]), body, keras3.layers.Dense(4)])
    found = []
    for epoch in range(2):
        with strategy.scope():
            model.compile(keras3.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
        monitor = tss.callbacks.CommunicationMonitor()
        options = {"initial_epoch": epoch, "epochs": epoch + 1, "callbacks": [monitor], "verbose": 0}
        found.append(model.fit(dataset(), **options).history)
        body.trainable = True
    if topology.num_nodes > 1:
        assert found[0]["sparse_part"][0] > 0 == found[1]["sparse_part"][0]


def test_a_monitor_warns_of_changes_alone(topology, caplog):
    """Not of more layers that are trained, nor of another strategy, whose changes are counted anew."""
    monitor = tss.callbacks.CommunicationMonitor()
    for _ in range(2):
        strategy = tss.SparseStrategy(communication=Piecewise([(0, HiTopK(0.1)), (1, Dense())]))
        with strategy.scope():
            body = keras3.layers.Dense(4, trainable=False)
            model = keras3.Sequential([keras3.Input([5]), body, keras3.layers.Dense(4)])
        for epoch in range(3):
            with strategy.scope():
                model.compile(keras3.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
            options = {"initial_epoch": epoch, "epochs": epoch + 1, "callbacks": [monitor], "verbose": 0}
            model.fit(dataset(), **options)
            body.trainable = epoch == 1  # from the third on
    said = [message for message in caplog.messages if "gradients are now summed by" in message]
    told = topology.rank == 0 and topology.num_workers > 1
    assert ["HiTopK" in message.split("before by")[1] for message in said] == [True] * (2 * told)


def test_steps_of_calls_that_are_not_full(strategy, keras, shared_tmp):
    """Seven steps an epoch, three at a time: steps 7 to 13 are the second epoch's."""
    path = shared_tmp / "trace.json"
    monitor = tss.callbacks.CommunicationMonitor(trace=path, trace_steps=(7, 14))
    model = compiled(strategy, keras, steps_per_execution=3)
    begun = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(monitor._step)

    data = dataset(7 * 8)
    model.fit(data, epochs=3, callbacks=[monitor, Epochs()], verbose=0)
    assert begun == [0, 7, 14]
    strategy.extended.collectives.barrier()
    bars = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    calls = {e["name"] for e in bars if e["cat"] == "step"} - {"step 6"}  # which might have had three
    assert calls == {"step 7", "step 10", "step 13"}
