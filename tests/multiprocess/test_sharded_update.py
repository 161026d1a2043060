"""ShardedUpdate against training without it: same weights and slots, of which each worker holds a part."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lars_pto
import tf_sparse_strategy as tss
from tests import lars_layers
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import whole, whole_state
from tests.thorough import thorough_if
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.overlap import chunks
from tf_sparse_strategy.overlap.update_at_once import UpdateAtOnce

ROWS, BATCH, WORDS = 26, 8, 11  # the last batch has 2 rows
FUSION = 64  # bytes: several buckets even here
pytestmark = pytest.mark.usefixtures("tolerance")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without, with)."""
    return tss.SparseStrategy(), tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate(FUSION))


def dataset(seed=0):
    x, y = oracle.regression(ROWS, seed)
    words = np.random.default_rng(seed).integers(0, WORDS, size=(ROWS, 2), dtype="int32")
    return tf.data.Dataset.from_tensor_slices(((x, words), y)).batch(BATCH)


def network():
    """Two dense layers, one with a constraint; a scalar weight; a table, whose gradient is sparse."""
    inputs = [keras.Input((oracle.FEATURES,)), keras.Input((2,), dtype="int32")]
    embedded = keras.layers.Flatten()(keras.layers.Embedding(WORDS, 3)(inputs[1]))
    hidden = keras.layers.Concatenate()([inputs[0], embedded])
    hidden = keras.layers.Dense(8, activation="tanh", kernel_constraint="max_norm")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    return oracle.start(keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden)))


def state(model):
    return [np.array(v) for v in whole_state(model)]


def built(strategy, optimizer, seed=5, **compile_args):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = network()
        model.compile(optimizer(), "mse", **compile_args)
    return model


def trained(strategy, optimizer, epochs=2, callbacks=(), **compile_args):
    model = built(strategy, optimizer, **compile_args)
    history = model.fit(
        dataset(), validation_data=dataset(1), epochs=epochs, verbose=0, callbacks=list(callbacks)
    )
    slots = {f"slot {i}": v for i, v in enumerate(whole(model.optimizer.variables))}
    return oracle.outcome(model, history, **slots), model


def adam(**settings):
    return keras.optimizers.Adam(0.02, **settings)


def decaying():
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7), weight_decay=0.1, use_ema=True
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


class DecaysItself(keras.optimizers.SGD):
    """Of which Keras's own decay knows nothing."""

    elementwise = True

    def _apply_weight_decay(self, variables):
        for variable in variables:
            variable.assign(variable * 0.9)


def scaled():
    inner = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**7)


def by_element():
    """Optimizers whose updates know no norms."""
    return {
        "decay and averages": decaying,
        "a decay of its own": lambda: DecaysItself(0.1, momentum=0.9),
        "loss scaling": scaled,
        "accumulation": lambda: adam(gradient_accumulation_steps=2),
        "adagrad": lambda: keras.optimizers.Adagrad(0.1),
        "nadam": lambda: keras.optimizers.Nadam(0.02),
    }


def with_norms():
    return {
        "clipnorm": lambda: adam(clipnorm=0.05),
        "global_clipnorm": lambda: adam(global_clipnorm=0.05),
        "rows clipped": lambda: tss.optimizers.LazyAdam(0.02, global_clipnorm=0.05),
        "lars": lambda: lars_pto.LARS(
            0.05, weight_decay=0.01, trust_coefficient=0.1, nesterov=True, use_ema=True,
            weight_decay_exclusions=["head"],
        ),
        "lars, loss scaling": lambda: keras.optimizers.LossScaleOptimizer(
            lars_pto.LARS(0.05, trust_coefficient=0.1, parallel="off"), initial_scale=2.0**7
        ),
        "larc": lambda: lars_pto.LARS(0.5, variant="larc_clip", clipnorm=0.5),
        "lamb": lambda: lars_pto.LAMB(0.02, weight_decay=0.01),
        "lamb, nvidia's": lambda: lars_pto.LAMB(0.02, global_clipnorm=0.05),
    }  # fmt: skip


def assert_parts(comm, model):
    """Each slot beside a dense variable is a worker's chunk of it; those of the table are whole."""
    workers = comm.topology.num_workers
    parts = [slices.of(v) for v in model.optimizer.variables]
    parts = [part for part in parts if part is not None]
    dense = [v for v in model.trainable_variables if "embeddings" not in v.path]
    assert len(parts) % len(dense) == 0 and (workers == 1) == (not parts)
    for part in parts:
        elements = int(np.prod(part.partition.shape, dtype=int))
        assert part.values[0].shape == [chunks.size(elements, workers)]


@pytest.mark.parametrize("name", thorough_if(lambda name: name in ("adagrad", "accumulation"), by_element()))
def test_same_as_without(comm, strategies, tolerance, name):
    """To the bit where a sum has one order and no graph is optimized; several steps in one call."""
    traced = dict(steps_per_execution=3) if name == "loss scaling" else dict(run_eagerly=True)
    (expected, _), (ours, model) = (trained(s, by_element()[name], **traced) for s in strategies)
    assert ours.keys() == expected.keys()
    exact = comm.topology.num_workers <= 2 and "run_eagerly" in traced
    limit = 0.0 if exact else tolerance
    for key, value in expected.items():
        np.testing.assert_allclose(ours[key], value, rtol=limit, atol=limit, err_msg=key)
    assert_parts(comm, model)


OFTEN = ("global_clipnorm", "rows clipped", "lars, loss scaling", "lamb")


@pytest.mark.parametrize("name", thorough_if(lambda name: name not in OFTEN, with_norms()))
def test_norms_of_wholes(comm, strategies, tolerance, name):
    """Their squares are added up in another order than without."""
    (expected, _), (ours, model) = (
        trained(s, with_norms()[name], epochs=1, run_eagerly=name != "lamb") for s in strategies
    )
    oracle.assert_same(ours, expected, rtol=tolerance, atol=3 * tolerance)
    assert_parts(comm, model)


SIZES = [*((m, ()) for m in lars_layers.MODELS), ("many", (0, 3, 6))]


@pytest.mark.parametrize("case", thorough_if(lambda case: case == ("many", ()), SIZES), ids=str)
def test_layers_of_any_size(comm, strategies, case):
    """Fewer layers than workers, one huge one, scalars: fewer elements than workers; some that are frozen."""
    model, frozen = case

    def run(make, strategy):
        values, _ = lars_layers.train("keras3", make, model, strategy, frozen=frozen)
        return values[: len(lars_layers.MODELS[model])]

    off = {"parallel": "off"}
    for make in (lambda: lars_pto.LARS(0.5, nesterov=True, **off), lambda: lars_pto.LAMB(0.5, **off)):
        expected, ours = (run(make, strategy) for strategy in strategies)
        same(ours, expected, tolerance=1e-6)
        for value in ours:
            oracle.assert_identical(comm, value)


def test_the_test_can_fail(partners, strategies, monkeypatch):
    """Negative control: weights that are not gathered differ."""
    expected, _ = trained(strategies[0], adam, run_eagerly=True)
    monkeypatch.setattr(UpdateAtOnce, "_finish", lambda *step: None)
    ours, _ = trained(strategies[1], adam, run_eagerly=True)
    with pytest.raises(AssertionError):
        oracle.assert_same(ours, expected, rtol=1e-3, atol=1e-3)


def lamb():
    return lars_pto.LAMB(0.02, weight_decay=0.01, use_ema=True)


def same(one, other, tolerance=0.0):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


KINDS = ["keras", "weights", "checkpoint"]


@pytest.mark.parametrize("kind", thorough_if(lambda kind: kind != "checkpoint", KINDS))
def test_files_are_whole(comm, strategies, shared_tmp, kind):
    """Written by either, read by the other and by one process alone, where training goes on alike."""
    name = {"keras": "m.keras", "weights": "m.weights.h5", "checkpoint": "checkpoint"}[kind]
    compiled = dict(run_eagerly=True)

    def write(model, path):
        if kind == "keras":
            model.save(path)
        elif kind == "weights":
            model.save_weights(path)
        else:
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
        comm.barrier()

    def read(make, path):
        if kind == "keras":
            return keras.saving.load_model(path)
        model = make()
        model.optimizer.build(model.trainable_variables)
        if kind == "weights":
            model.load_weights(path)
        else:
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(path)
        return model

    def alone():
        keras.utils.set_random_seed(8)
        model = network()
        model.compile(lamb(), "mse", **compiled)
        return model

    after = []
    for number, strategy in enumerate(strategies):
        _, model = trained(strategy, lamb, epochs=1, **compiled)
        path = str(shared_tmp / f"{number}{name}")
        write(model, path)
        expected = state(model)
        if comm.topology.rank == 0:
            found = read(alone, path)
            same([np.array(v) for v in (*found.weights, *found.optimizer.variables)], expected)
        comm.barrier()
        other = strategies[1 - number]
        with other.scope():
            found = read(lambda other=other: built(other, lamb, seed=9, **compiled), path)
        same(state(found), expected)
        found.fit(dataset(2), epochs=1, verbose=0)
        after.append(state(found))
    same(*after, tolerance=1e-5)


def test_a_file_within_an_epoch(strategies, shared_tmp):
    """Weights are never behind: a callback that saves every second step needs nothing before it."""
    path, seen = str(shared_tmp / "within.weights.h5"), []

    def look(batch, logs):
        if batch == 1:
            seen.append(state(model))

    model = built(strategies[1], lamb, run_eagerly=True)
    looking = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    saving = keras.callbacks.ModelCheckpoint(path, save_freq=2, save_weights_only=True)
    model.fit(dataset().take(3), epochs=1, verbose=0, callbacks=[looking, saving])
    found = built(strategies[1], lamb, seed=9)
    with strategies[1].scope():
        found.optimizer.build(found.trainable_variables)
    found.load_weights(path)
    same(state(found), seen[0])


def test_what_cannot_be_divided_is_refused(partners, strategies):
    model = built(strategies[1], adam, run_eagerly=True)
    with pytest.raises(NotImplementedError, match="legacy .h5"):
        model.fit(dataset(), epochs=1, verbose=0)
        model.save("never_written.h5")
    with pytest.raises(ValueError, match="LARS or LAMB"), strategies[1].scope():
        keras.optimizers.Muon(0.1).build(model.trainable_variables)


def test_what_is_left_of_an_optimizer_is_refused(partners, strategies):
    """Its slots are parts, also of the variables that the later one does not have."""
    strategy = strategies[1]
    with strategy.scope():
        kernel, head = keras.Variable(tf.ones([3, 2])), keras.Variable(tf.ones([2]))
        of_all, of_head = keras.optimizers.Adam(), keras.optimizers.Adam()
        of_all.build([kernel, head])
        of_head.build([head])
    with pytest.raises(ValueError, match="built later on some variables of Adam"):
        strategy.run(lambda: of_all.apply([tf.ones([3, 2])], [kernel]))


def test_files_of_a_model_with_optimizers_of_its_own(comm, strategies, shared_tmp):
    """Their slots are parts, too, that the first worker asks for."""

    class Own(keras.Sequential):
        pass

    def made():
        with strategies[1].scope():
            model = Own([keras.Input([4]), keras.layers.Dense(3, kernel_initializer="ones")])
            model.own = keras.optimizers.Adam(0.1)
            model.own.build(model.trainable_variables)
            model.compile(optimizer=None)
        return model

    model, path = made(), str(shared_tmp / "own.weights.h5")
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    strategies[1].run(lambda: model.own.apply(gradients, model.trainable_variables))
    model.save_weights(path)
    comm.barrier()
    other = made()
    other.load_weights(path)
    for one, two in zip(model.own.variables, other.own.variables, strict=True):
        np.testing.assert_array_equal(one, two)
    assert int(other.own.iterations.numpy()) == 1


@pytest.mark.parametrize("where", ["a model within", "a dict", "a list"])
def test_files_of_a_model_that_holds_optimizers_further_down(comm, strategies, shared_tmp, where):
    """Keras saves them with it; the first worker alone would wait for the others."""

    def made():
        with strategies[1].scope():
            base = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, kernel_initializer="ones")])
            model, adam = keras.Sequential([base, keras.layers.Dense(1)]), keras.optimizers.Adam(0.1)
            if where == "a model within":
                base.compile(adam, "mse")
            else:
                model.own = {"adam": adam} if where == "a dict" else [adam]
            adam.build(base.trainable_variables)
            model.compile(keras.optimizers.SGD(0.1), "mse")
        return model, adam

    model, adam = made()
    path = str(shared_tmp / "further.weights.h5")
    gradients = [tf.ones(v.shape) for v in model.layers[0].trainable_variables]
    strategies[1].run(lambda: adam.apply(gradients, model.layers[0].trainable_variables))
    model.save_weights(path)
    comm.barrier()
    other, restored = made()
    other.load_weights(path)
    if where == "a model within":  # lists and dicts are saved, too, but by Keras's own rules
        for one, two in zip(adam.variables, restored.variables, strict=True):
            np.testing.assert_array_equal(*whole([one, two]))


def test_what_was_not_updated_is_not_gathered(strategies, topology):
    strategy, n = strategies[1], 8 * topology.num_workers
    with strategy.scope():
        variables = [keras.Variable(tf.zeros([n])) for _ in range(2)]
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(variables)

    def sent(some):
        before = strategy.extended.collectives.traffic()[1].total
        strategy.run(lambda: optimizer.apply([tf.ones([n])] * len(some), some))
        return strategy.extended.collectives.traffic()[1].total - before

    scattered = gathered = 4 * 8 * (topology.num_workers - 1)
    assert sent(variables) - sent(variables[:1]) == scattered + gathered
    expected = [-2.0 * topology.num_workers, -1.0 * topology.num_workers]
    assert [float(v.numpy().mean()) for v in variables] == expected


@pytest.mark.usefixtures("partners")
def test_chunks_accumulate_nothing(strategies):
    """Each worker does so for itself, before gradients are summed."""
    strategy = strategies[1]
    with strategy.scope():
        optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
        optimizer.build([keras.Variable(tf.zeros([8]))])
    inner = strategy.extended.chunked.of(optimizer).inner
    assert len(optimizer._accumulated_gradients) == 1
    assert not getattr(inner, "_accumulated_gradients", [])
