"""DeAR(fusion="auto"): `fit` tries sizes, all workers the same, and trains as with any one of them."""

import gc
import json
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.overlap_runs import FUSION, adam, built, nesterov
from tf_sparse_strategy.overlap import kept, search
from tf_sparse_strategy.overlap import tuner as tuner_module
from tf_sparse_strategy.overlap.trials import Trials

STEPS, ROWS = 18, 6  # calls of the train function in an epoch, rows of a batch


@pytest.fixture(autouse=True)
def small(monkeypatch, shared_tmp):
    """Sizes such that this model, too, has several plans; short trials; files of this test's own."""
    monkeypatch.setattr(search, "SMALLEST", 8)
    monkeypatch.setattr(search, "LARGEST", 2000)
    monkeypatch.setattr(search, "START", 300)
    monkeypatch.setattr(tuner_module, "_DISCARDED", 1)
    monkeypatch.setattr(tuner_module, "_MEASURED", 2)
    monkeypatch.setenv("TSS_CACHE_DIR", str(shared_tmp))


def trained(overlap, optimizer, epochs=2, **settings):
    """(what two runs are compared by, what tuned the buckets)."""
    strategy = tss.SparseStrategy(overlap=overlap)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = oracle.mlp(keras, keras.layers.BatchNormalization())
        model.compile(optimizer(), "mse", **settings)
    data = oracle.dataset(ROWS * STEPS, ROWS)
    history = model.fit(
        data, epochs=epochs, verbose=0, validation_data=oracle.dataset(7, 4, seed=1)
    )
    tuner = strategy.extended.chunked.tuner_of(model)
    slots = {f"slot {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
    return oracle.outcome(model, history, **slots), tuner


def assert_same(ours, expected):
    """Every element is summed in one order, whatever the bucket: with two workers to the bit."""
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def tried_everywhere(comm, tuner):
    """The sizes in the order tried, after making sure that all workers have tried the same."""
    sizes = list(tuner.trials.seconds)
    everyone = comm.all_gather(tf.constant([sizes], tf.int64)).numpy()
    assert (everyone == sizes).all()
    return sizes


@pytest.fixture
def at_once(monkeypatch):
    """No trial waits until the training has taken long enough to pay for it."""
    monkeypatch.setattr(Trials, "calls_until_next", lambda trials: 0)


def test_tuned_is_fixed(comm, partners, at_once, shared_tmp):
    """Eagerly, with nothing to trace: all plans are tried, and the next run begins with the best."""
    fixed, _ = trained(tss.overlap.DeAR(FUSION), adam, run_eagerly=True)
    overlap = tss.overlap.DeAR("auto", tuning=1.0)
    tuned, tuner = trained(overlap, adam, run_eagerly=True)
    assert_same(tuned, fixed)
    sizes = tried_everywhere(comm, tuner)
    assert sizes[0] == search.START and len(sizes) == len(set(sizes)) >= 4
    assert tuner.is_done and tuner._update.fusion == tuner.trials.best
    comm.barrier()
    [file] = (shared_tmp / "fusion").iterdir()
    assert json.loads(file.read_text())["fusion"] == tuner.trials.best
    _, second = trained(overlap, adam, epochs=1, run_eagerly=True)
    assert second.is_done and second._update.fusion == tuner.trials.best
    assert second.trials.record == tuner.trials.record


def test_a_run_goes_on_where_the_last_one_ended(comm, partners, monkeypatch):
    """After two trials; the third was to wait for longer than the first run lasted."""
    overlap = tss.overlap.DeAR("auto", tuning=1.0)
    monkeypatch.setattr(Trials, "calls_until_next", lambda trials: 10**6 * (len(trials.seconds) > 1))
    _, first = trained(overlap, adam, epochs=1, run_eagerly=True)
    begun = tried_everywhere(comm, first)
    assert len(begun) == 2 and not first.is_done
    monkeypatch.setattr(Trials, "calls_until_next", lambda trials: 0)
    _, second = trained(overlap, adam, run_eagerly=True)
    assert second.is_done
    sizes = tried_everywhere(comm, second)
    assert sizes[:2] == begun and len(sizes) == len(set(sizes)) >= 4


def test_functions_are_traced_for_their_size(comm, partners, at_once, monkeypatch):
    """As training is: traced for each size, and back to the best one's function, which is kept."""
    made = []
    original = keras.Model.make_train_function

    def counted(model, force=False):
        made.append(force)
        return original(model, force)

    monkeypatch.setattr(keras.Model, "make_train_function", counted)
    fixed, _ = trained(tss.overlap.DeAR(FUSION), nesterov, epochs=1, jit_compile=False)
    del made[:]
    overlap = tss.overlap.DeAR("auto", tuning=1.0)
    tuned, tuner = trained(overlap, nesterov, epochs=1, jit_compile=False)
    assert_same(tuned, fixed)
    sizes = tried_everywhere(comm, tuner)
    assert len(sizes) > 1
    assert made.count(True) <= len(sizes)  # one may have begun when training ended


def test_training_that_ends_within_a_trial(comm, partners, at_once, shared_tmp, monkeypatch):
    """What comes next begins with the best size; the time that has passed is kept."""
    monkeypatch.setattr(tuner_module, "_MEASURED", STEPS // 2)  # the second trial does not come to its end
    _, tuner = trained(tss.overlap.DeAR("auto"), nesterov, epochs=1, run_eagerly=True)
    assert tried_everywhere(comm, tuner) == [search.START] and not tuner.is_done
    assert tuner._next != search.START and tuner._update.fusion == search.START
    comm.barrier()
    [file] = (shared_tmp / "fusion").iterdir()
    kept_record = json.loads(file.read_text())["trials"]
    if comm.topology.rank == 0:
        assert kept_record == tuner.trials.record and kept_record["trained"] > kept_record["dearest"]


def test_rank_0_decides(comm, partners, at_once, monkeypatch):
    """The others' opinion, here a wrong one, is not asked; nor is their file."""
    if comm.topology.rank > 0:
        monkeypatch.setattr(search, "suggest", lambda *args: 1 / 0)
        monkeypatch.setattr(kept, "read", lambda facts: 12345)
    _, tuner = trained(tss.overlap.DeAR("auto"), nesterov, epochs=1, run_eagerly=True)
    assert len(tried_everywhere(comm, tuner)) > 1


def test_calls_too_few_for_a_trial_wait_like_others(comm, partners, monkeypatch):
    """Else each short `fit` would begin it again, and train by its size, however slow."""
    monkeypatch.setattr(Trials, "calls_until_next", lambda trials: 2)
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR("auto"))
    with strategy.scope():
        model = oracle.mlp(keras)
        model.compile(nesterov(), "mse", run_eagerly=True)
    model.fit(oracle.dataset(ROWS * 3, ROWS), verbose=0)  # the first trial
    tuner = strategy.extended.chunked.tuner_of(model)
    for _ in range(3):
        model.fit(oracle.dataset(ROWS * 3, ROWS), verbose=0)  # one call more than the wait
        assert tuner._wait == 2 and tuner._update.fusion == search.START
    assert tried_everywhere(comm, tuner) == [search.START]


def test_a_loop_of_ones_own_is_not_tuned(partners):
    """Though it calls Keras's callbacks: what the tuner would trace anew is not what it runs."""
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR("auto"))
    model, optimizer = built(strategy)
    with strategy.scope():
        model.compile(optimizer, "mse")
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    for batch in range(STEPS):
        callbacks.on_train_batch_begin(batch)
        callbacks.on_train_batch_end(batch)
    callbacks.on_epoch_end(0)
    callbacks.on_train_end()
    tuner = strategy.extended.chunked.of(optimizer).tuner
    assert not tuner.trials.seconds and not tuner.is_done


def test_trials_wait_for_their_part_of_the_time(comm, partners):
    """By default a second trial would cost more than 1 % of so short a training."""
    _, tuner = trained(tss.overlap.DeAR("auto"), nesterov, epochs=1, jit_compile=False)
    assert tried_everywhere(comm, tuner) == [search.START] and not tuner.is_done


def test_a_model_that_was_tuned_can_go(comm, partners):
    """One whose trials have not come to an end: the next ones would gather its weights, too."""
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR("auto"))
    seen = []
    for _ in range(2):
        with strategy.scope():
            model = oracle.mlp(keras)
            model.compile(nesterov(), "mse", jit_compile=False)
        model.fit(oracle.dataset(ROWS * 2, ROWS), verbose=0)
        seen.append(weakref.ref(model.optimizer))
        del model
    gc.collect()
    assert seen[0]() is None
    assert len(strategy.extended.chunked._updates) == 1


def test_a_function_made_anew_by_others_begins_a_trial_anew(comm, partners):
    """E.g. by a callback that reads the clock in it, or by compile()."""
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR("auto"))
    _, optimizer = built(strategy)
    tuner = strategy.extended.chunked.of(optimizer).tuner
    model = types.SimpleNamespace(train_function=object())
    tuner._calls, tuner._times, tuner._wait = 7, [1.0] * 5, 1
    tuner.begin_call(model, is_first=False)
    assert (tuner._calls, tuner._times) == (0, [])
    assert model._functions_by_fusion == {tuner._update.fusion: model.train_function}
