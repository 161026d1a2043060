"""Files of residuals hold what one model has left, and what some have no use for."""

import io
import json

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import saving_models
from tests.multiprocess.saving_models import interruption
from tests.multiprocess.sparse_runs import SHAPES, apart, kept, moved, step
from tf_sparse_strategy.communication import Dense, HiTopK, OkTopK, Piecewise, TopKAllGather
from tf_sparse_strategy.communication.switching import EPOCH
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.memory import key_of

SCHEME = TopKAllGather(0.1)


def model_of(strategy, seed, keras=keras3):
    return saving_models.build(keras, strategy, seed)


def own_state(strategy, model):
    """The model's, and of what is left what its gradients have left."""
    buckets = strategy.residual.trained_buckets(model.variables)
    left = [v.numpy() for _, state in buckets for v in state.values()]
    return [*saving_models.state(model), *left]


class Around(keras3.Model):
    """Is never built: it has no `call`."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.part(x, training=True) - y))
        variables = self.part.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.parametrize("which", ["within", "probe", "part", "around"])
def test_each_fit_has_epochs_of_its_own(topology, which):
    """Another model's within it, also one on frozen layers of its own, or of a part; of a part before it."""
    strategy = tss.SparseStrategy(communication=Piecewise([(0, SCHEME), (1, Dense())]))
    model, epochs = model_of(strategy, 1), []

    def look(epoch, logs):
        states = [state for _, state in strategy.residual.trained_buckets(model.trainable_variables)]
        epochs.append({int(state[EPOCH]) for state in states if EPOCH in state})

    def probe(epoch, logs):
        model.trainable = False
        with strategy.scope():
            linear = keras3.Sequential([model, keras3.layers.Dense(1)])
            linear.compile("sgd", "mse", run_eagerly=True)
        saving_models.fit(linear)
        model.trainable = True

    callbacks = [keras3.callbacks.LambdaCallback(on_epoch_end=look)]
    if which != "around":
        inner = model_of(strategy, 2)
        with strategy.scope():
            part = keras3.Sequential([keras3.layers.Input((6,)), model.layers[-1]])
            part.compile("sgd", "mse", run_eagerly=True)
        features = np.ones([8, 6], np.float32), np.ones([8, 1], np.float32)
        others = {
            "within": lambda *_: saving_models.fit(inner),
            "probe": probe,
            "part": lambda *_: part.fit(*features, verbose=0),
        }
        fit_it = keras3.callbacks.LambdaCallback(on_epoch_begin=others[which])
        saving_models.fit(model, epochs=3, callbacks=[fit_it, *callbacks])
    else:
        saving_models.fit(model, epochs=5)
        with strategy.scope():
            around = Around(model)
            around.compile(keras3.optimizers.SGD(0.01), run_eagerly=True)
        saving_models.fit(around, epochs=3, callbacks=callbacks)
        assert not around.built
    assert epochs == ([{0}, {1}, {2}] if topology.num_workers > 1 else [set()] * 3)


@pytest.mark.parametrize("which", ["resumed alone", "resumed beside a dead one"])
def test_a_model_is_given_what_it_has_left_and_not_another(topology, keras, shared_tmp, which):
    """Models of one kind, one after the other under one strategy: folds, or an ensemble."""
    directory = str(shared_tmp / "second")

    def backup():
        return keras.callbacks.BackupAndRestore(directory)

    strategy = tss.SparseStrategy(communication=SCHEME)
    first, reference = model_of(strategy, 1, keras), model_of(strategy, 2, keras)
    saving_models.fit(first, epochs=2)
    saving_models.fit(reference, epochs=3)
    expected = own_state(strategy, reference)
    interrupted = model_of(strategy, 2, keras)
    with pytest.raises(RuntimeError, match="interrupted"):
        saving_models.fit(interrupted, epochs=3, callbacks=[backup(), interruption(keras, at_epoch=2)])
    del interrupted
    before = own_state(strategy, first)
    if which == "resumed alone":
        strategy = tss.SparseStrategy(communication=SCHEME)
    resumed = model_of(strategy, 7, keras)
    history = saving_models.fit(resumed, epochs=3, callbacks=[backup()])
    assert history.epoch == [2]
    saving_models.assert_same_state(own_state(strategy, resumed), expected)
    if which != "resumed alone":
        saving_models.assert_same_state(own_state(strategy, first), before)
    assert (len(expected) > len(saving_models.state(reference))) == (topology.num_workers > 1)


def test_a_head_made_anew_on_the_same_layers_goes_on(topology, shared_tmp):
    """Where a `fit` failed, whose model some other still holds."""
    strategy, held = tss.SparseStrategy(communication=SCHEME), []
    with strategy.scope():
        base = keras3.Sequential([keras3.layers.Input((4,)), keras3.layers.Dense(30)])
    weights = base.get_weights()

    def attempt(*callbacks):
        keras3.utils.set_random_seed(1)
        with strategy.scope():
            held.append(keras3.Sequential([base, keras3.layers.Dense(1)]))
            held[-1].compile(keras3.optimizers.SGD(0.01), "mse", run_eagerly=True)
        saving_models.fit(held[-1], epochs=2, callbacks=list(callbacks))
        return own_state(strategy, held[-1])

    expected = attempt()
    base.set_weights(weights)
    directory = str(shared_tmp / "backup")
    with pytest.raises(RuntimeError, match="interrupted"):
        attempt(keras3.callbacks.BackupAndRestore(directory), interruption(keras3, at_epoch=1))
    saving_models.assert_same_state(attempt(keras3.callbacks.BackupAndRestore(directory)), expected)


@pytest.mark.parametrize("held", [False, True])
def test_a_model_made_anew_takes_up_a_checkpoint(comm, topology, shared_tmp, held):
    """And not the one that was made before, which is no more; or still is somewhere: then on all workers."""
    strategy = tss.SparseStrategy(communication=OkTopK(0.1))
    model = model_of(strategy, 1)
    saving_models.fit(model)
    path = tf.train.Checkpoint(model=model, residual=strategy.residual).save(str(shared_tmp / "saved"))
    saving_models.fit(model)
    expected = own_state(strategy, model)
    kept_by_one = model if held and topology.rank == 0 else None
    del model
    again = model_of(strategy, 7)
    tf.train.Checkpoint(model=again, residual=strategy.residual).restore(path)
    saving_models.fit(again)
    if held:
        saving_models.assert_same_everywhere(comm, again.get_weights())
    else:
        saving_models.assert_same_state(own_state(strategy, again), expected)
    del kept_by_one


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_is_built_in_its_first_step_goes_on(topology, keras, shared_tmp, beside):
    """Of which nothing is known yet when it is restored; and takes nothing from one that is."""
    strategy, directory = tss.SparseStrategy(communication=SCHEME), str(shared_tmp / "backup")

    def attempt(*callbacks):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(30), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
        saving_models.fit(model, epochs=2, callbacks=list(callbacks))
        return model, own_state(strategy, model)

    other, expected = attempt()
    if not beside:
        del other
    with pytest.raises(RuntimeError, match="interrupted"):
        attempt(keras.callbacks.BackupAndRestore(directory), interruption(keras, at_epoch=1))
    _, found = attempt(keras.callbacks.BackupAndRestore(directory))
    saving_models.assert_same_state(found, expected)
    if beside:
        saving_models.assert_same_state(own_state(strategy, other), expected)


def test_a_head_takes_nothing_that_another_had_left(topology, shared_tmp):
    """On the same layers, whose training had ended."""
    ended = {"backup_dir": str(shared_tmp / "ended"), "delete_checkpoint": False}
    found = []
    for resumes in (False, True):
        strategy = tss.SparseStrategy(communication=SCHEME)
        keras3.utils.set_random_seed(1)
        with strategy.scope():
            base = keras3.Sequential([keras3.layers.Input((4,)), keras3.layers.Dense(30)])
            heads = [keras3.Sequential([base, keras3.layers.Dense(1)]) for _ in range(2)]
            for head in heads:
                head.compile(keras3.optimizers.SGD(0.01), "mse", run_eagerly=True)
        first = saving_models.fit(heads[0], callbacks=[keras3.callbacks.BackupAndRestore(**ended)])
        assert len(first.epoch) == (not resumes)
        saving_models.fit(heads[1])
        left = [s for _, s in strategy.residual.trained_buckets(heads[1].trainable_variables)]
        found.append([v.numpy() for state in left for v in state.values()])
    saving_models.assert_same_state(*found)


def test_a_training_that_had_ended_leaves_nothing_to_the_next(topology, keras, shared_tmp):
    """It restores, has no step to make, and another model of its kind begins."""

    def backup(name):
        directory = str(shared_tmp / name)
        return keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)

    strategy = tss.SparseStrategy(communication=SCHEME)
    saving_models.fit(model_of(strategy, 1, keras), epochs=2, callbacks=[backup("first")])
    reference = model_of(strategy, 2, keras)
    saving_models.fit(reference)
    expected = own_state(strategy, reference)
    strategy = tss.SparseStrategy(communication=SCHEME)  # of another run
    first = saving_models.fit(model_of(strategy, 1, keras), epochs=2, callbacks=[backup("first")])
    assert first.epoch == []
    second = model_of(strategy, 2, keras)
    saving_models.fit(second, callbacks=[backup("second")])
    saving_models.assert_same_state(own_state(strategy, second), expected)


def test_counts_outlive_backups_of_a_scheme_that_has_none(comm, topology, shared_tmp):
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    steered = Piecewise([(0, Dense()), (9, OkTopK(0.1))], unit="step")
    first = GradientReducer(steered, apart(topology), bucket_bytes=100)
    for seed in range(4):
        step(first, variables, topology, seed)
    paths = [str(shared_tmp / f"{n}.npz") for n in range(3)]
    first.memory.save(paths[0], variables)
    comm.barrier()
    for before, after in zip(paths, paths[1:], strict=False):  # twice
        exact = GradientReducer(Dense(), apart(topology), bucket_bytes=100)
        exact.memory.load(before, variables)
        step(exact, variables, topology, 4)
        exact.memory.save(after, variables)
        comm.barrier()
    last = GradientReducer(steered, apart(topology), bucket_bytes=100)
    last.memory.load(paths[2], variables)
    step(last, variables, topology, 5)
    steps = {int(s["step"]) for b, s in last.memory.buckets if not b.is_exact}
    assert steps == ({5} if topology.num_workers > 1 else set())


def test_the_key_of_a_variable_is_that_of_its_gradients(topology, strategy):
    with strategy.scope():
        variable = keras3.Variable(tf.zeros([3]))
    assert key_of(variable) == key_of(variable.value)
    assert key_of(variable) != key_of(keras3.Variable(tf.zeros([3])))


def test_a_strategy_with_overlap_says_that_what_was_left_is_lost(
    partners, comm, topology, shared_tmp, caplog
):
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    sparse = tss.SparseStrategy(communication=SCHEME)
    step(sparse.extended.gradients, variables, topology, 0)
    path = str(shared_tmp / "left.npz")
    sparse.residual.save(path, variables)
    comm.barrier()
    dense, divided = tss.SparseStrategy(), tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate())
    for strategy, told in ((dense, False), (divided, True)):
        caplog.clear()
        strategy.residual.load(path, variables)
        assert ("overlap: what the checkpoint's workers" in caplog.text) == told
        assert strategy.residual.is_restored != told
        strategy.residual.save(str(shared_tmp / f"again-{told}.npz"), variables)
    comm.barrier()
    assert (shared_tmp / "again-False.npz").exists() and not (shared_tmp / "again-True.npz").exists()


def test_residuals_that_are_zero_are_not_saved(comm, topology):
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    reducer = GradientReducer(HiTopK(0.1), apart(topology), bucket_bytes=100)
    reducer.reduce([(tf.zeros_like(v), v) for v in variables])
    names = {}
    for when in ("empty", "left"):
        blob = moved(comm, reducer.memory.serialize())
        with np.load(io.BytesIO(blob)) as archive:
            names[when] = [name for name in archive.files if name.endswith("/residual")]
            assert len(json.loads(archive["records"].tobytes())) == (topology.num_workers > 1)
        step(reducer, variables, topology, 0)
    assert names["empty"] == []
    assert bool(names["left"]) == (topology.num_workers > 1)
    before = kept(reducer)
    other = GradientReducer(HiTopK(0.1), apart(topology), bucket_bytes=100)
    other.memory.deserialize(moved(comm, reducer.memory.serialize()))
    step(other, variables, topology, 1)
    step(reducer, variables, topology, 1)
    for one, two in zip(kept(reducer), kept(other), strict=True):
        np.testing.assert_array_equal(one, two)
    moves = any((a != b).any() for a, b in zip(before, kept(reducer), strict=True))
    assert moves == (topology.num_workers > 1)


def test_steps_go_on_after_a_stretch_of_exact_sums(comm, topology):
    """By a scheme that counts none, as is one worker's."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    steered = Piecewise([(0, Dense()), (2, OkTopK(0.1))], unit="step")
    first = GradientReducer(steered, apart(topology), bucket_bytes=100)
    for seed in range(4):
        step(first, variables, topology, seed)
    exact = GradientReducer(Dense(), apart(topology), bucket_bytes=100)
    exact.memory.deserialize(moved(comm, first.memory.serialize()))
    step(exact, variables, topology, 4)
    last = GradientReducer(steered, apart(topology), bucket_bytes=100)
    last.memory.deserialize(moved(comm, exact.memory.serialize()))
    step(last, variables, topology, 5)
    steps = {int(s["step"]) for b, s in last.memory.buckets if not b.is_exact}
    assert steps == ({5} if topology.num_workers > 1 else set())
