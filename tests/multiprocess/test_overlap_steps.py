"""DeAR in custom loops: what a step sends, who may look at weights when, and which updates are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.overlap_runs import adam, built, custom_step, pair
from tf_sparse_strategy.embedding import slices


@pytest.fixture(scope="module")
def strategies(comm):
    """(without overlap, with)."""
    return pair()


def test_a_step_gathers_and_scatters(partners, strategies):
    """Every bucket is reduced and gathered once; no gradient is all-reduced."""
    strategy = strategies[1]
    with strategy.scope():
        model = oracle.mlp(keras)
        optimizer = adam()
        optimizer.build(model.trainable_variables)
    step = custom_step(strategy, model, optimizer)
    step(tf.ones([2, oracle.FEATURES]))
    graph = step.get_concrete_function(tf.ones([2, oracle.FEATURES])).graph
    kinds = [op.type for op in graph.get_operations()]
    [update] = [u for u in strategy.extended.chunked._updates if u.optimizer is optimizer]
    assert len(update._buckets) > 1
    exchanges = 2 if strategy.topology.is_nested else 1  # inside the nodes, then between them
    assert kinds.count("HorovodAlltoall") == exchanges * len(update._buckets)
    assert "HorovodAllreduce" not in kinds
    inner = [n.op for f in graph.as_graph_def().library.function for n in f.node_def]
    known = [u for u in strategy.extended.chunked._updates if u.is_ready]  # of other models, too
    assert inner.count("HorovodAllgather") == sum(len(u._buckets) for u in known)


def test_reading_what_is_behind(comm, partners, strategies):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    old = model.get_weights()
    step = custom_step(strategy, model, optimizer)
    step(tf.ones([2, oracle.FEATURES]))
    slot = optimizer.variables[-1]
    for look in (
        model.get_weights,  # also on one worker alone: it does not wait for the others
        lambda: model(tf.ones([2, oracle.FEATURES])),
        slot.numpy,
        lambda: model.set_weights(old),
        lambda: model.trainable_variables[0].assign(old[0]),
        lambda: tf.train.Checkpoint(model=model).write("unused"),
    ):
        if comm.topology.rank == 0:
            with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
                look()
    strategy.synchronize()
    oracle.assert_identical(comm, np.concatenate([w.ravel() for w in model.get_weights()]))
    assert np.any(slot.numpy())


def test_reading_in_an_eager_step_what_a_traced_function_has_updated(strategies, partners):
    """The function's second call is not traced: that it has updated only its variables tell."""
    strategy = strategies[1]
    model, optimizer = built(strategy)
    weight = model.trainable_variables[0]

    @tf.function
    def update(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def step(x, looks):
        before = weight.numpy()
        update(x)
        return before, weight.numpy() if looks else None

    for looks in (False, False):
        strategy.run(step, (tf.ones([2, oracle.FEATURES]), looks))
    with pytest.raises(RuntimeError, match="is read after its update in the same step"):
        strategy.run(step, (tf.ones([2, oracle.FEATURES]), True))
    strategy.synchronize()


def test_updates_by_the_strategy_see_what_is_behind(strategies, partners):
    """TensorFlow gives such a function its own variables, past their guards."""
    strategy = strategies[1]
    model, optimizer = built(strategy)
    weight = model.trainable_variables[0].value
    with strategy.scope():
        average = tf.Variable(tf.zeros(weight.shape), trainable=False)

    def follow():
        with strategy.scope():
            strategy.extended.update(average, lambda a, w: a.assign(0.9 * a + 0.1 * w), args=(weight,))

    def overwrite():
        with strategy.scope():
            strategy.extended.update(weight, lambda w: w.assign(tf.zeros_like(w)))

    custom_step(strategy, model, optimizer)(tf.ones([2, oracle.FEATURES]))
    for look in (follow, overwrite):
        with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
            look()
    strategy.synchronize()
    follow()
    np.testing.assert_allclose(average.numpy(), 0.1 * model.get_weights()[0], rtol=1e-6)


def test_what_is_assigned_between_steps_counts(strategies, partners):
    """Weights and slots that are loaded, restored or set after `synchronize` are where training goes on."""
    results = []
    for strategy in strategies:
        model, optimizer = built(strategy)
        step = custom_step(strategy, model, optimizer)
        for _ in range(2):
            step(tf.ones([2, oracle.FEATURES]))
        strategy.synchronize()
        oracle.start(model, seed=9)
        optimizer.variables[-1].assign([3.0])
        step(tf.ones([2, oracle.FEATURES]))
        step(tf.ones([2, oracle.FEATURES]))
        strategy.synchronize()
        results.append([*model.get_weights(), optimizer.variables[-1].numpy()])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_functions_that_would_see_old_weights(partners, strategies):
    strategy = strategies[1]
    with strategy.scope():
        model, optimizer = oracle.mlp(keras), adam()
    x = tf.ones([2, oracle.FEATURES])
    early = tf.function(lambda: strategy.run(lambda: model(x)))
    early()
    with pytest.raises(RuntimeError, match="optimizer.build"):
        custom_step(strategy, model, optimizer)(x)
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        optimizer = adam()
        optimizer.build(model.trainable_variables)
    custom_step(strategy, model, optimizer)(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced before the optimizer"):
        early()
    late = tf.function(lambda: strategy.run(lambda: model(x)))
    found = late().numpy()
    strategy.synchronize()
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5)
    np.testing.assert_allclose(found, early().numpy(), rtol=1e-5)

    def write():
        model.trainable_variables[0].assign(tf.ones([oracle.FEATURES, 8]))

    with pytest.raises(RuntimeError, match="is assigned to within a step"):
        custom_step(strategy, model, optimizer, before=write)(x)
    for after, reason in (
        (lambda: model(x), "is read after its update in the same step"),
        (write, "is (assigned to within a step|read after its update)"),  # assigning reads the old value
        (
            lambda: optimizer.apply_gradients([(tf.ones([1]), model.trainable_variables[-1])]),
            "applied more than once|is read after its update",
        ),
    ):
        with pytest.raises(RuntimeError, match=reason):
            custom_step(strategy, model, optimizer, after)(x)


def test_an_old_model_on_one_worker_alone(comm, partners, strategies):
    """What a worker still holds of earlier models does not change the names of its collectives."""
    strategy, x = strategies[1], tf.ones([2, oracle.FEATURES])
    held = [built(strategy)]
    custom_step(strategy, *held[0])(x)
    strategy.synchronize()
    if comm.topology.rank > 0:
        held.clear()
    model, optimizer = built(strategy)
    step = custom_step(strategy, model, optimizer)
    for _ in range(3):
        step(x)
    strategy.synchronize()
    oracle.assert_identical(comm, np.concatenate([w.ravel() for w in model.get_weights()]))


def test_a_loop_within_a_run_is_refused(partners, strategies):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    variables = model.trainable_variables

    def update(number):
        optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
        return number + 1

    with pytest.raises(RuntimeError, match="Put the loop around strategy.run"):
        tf.function(lambda: strategy.run(lambda: tf.while_loop(lambda n: n < 2, update, [0])))()


def test_a_function_called_twice_in_one_run(partners, strategies):
    """The second call is not traced: the check is made when it runs."""
    strategy, x = strategies[1], tf.ones([2, oracle.FEATURES])
    model, optimizer = built(strategy)

    @tf.function
    def update():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def twice():
        update()
        update()

    strategy.run(update)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than once in one"):
        strategy.run(twice)
    strategy.synchronize()


@pytest.mark.parametrize("momentum", [0.5, np.float32(0.5)])
def test_settings_that_change_after_building(strategies, partners, momentum):
    results = []
    for strategy in strategies:
        model, optimizer = built(strategy, lambda: keras.optimizers.SGD(0.1, momentum=0.9))
        optimizer.momentum, optimizer.learning_rate = momentum, 0.2
        step = custom_step(strategy, model, optimizer)
        for _ in range(3):
            step(tf.ones([2, oracle.FEATURES]))
        strategy.synchronize()
        results.append(model.get_weights())
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_a_setting_that_the_constructor_refuses(partners, strategies):
    strategy = strategies[1]
    with strategy.scope():
        model = oracle.mlp(keras)
        optimizer = keras.optimizers.AdamW(weight_decay=0.1)
        optimizer.weight_decay = None
        with pytest.raises(ValueError, match="makes another AdamW .*weight_decay.*after optimizer.build"):
            optimizer.build(model.trainable_variables)


@pytest.mark.parametrize("dtype, rate, gradients", [
    ("float16", 1024.0, (2.5e-8, 2.5e-8)),
    ("float16", 1.0, (6e4, 6e4)),
    ("bfloat16", 1.0, (1001.0, -1000.0)),
])  # fmt: skip
@pytest.mark.parametrize("overlap", [tss.overlap.DeAR(), tss.overlap.ShardedUpdate()], ids=["DeAR", "PTO"])
def test_gradients_of_more_bits_than_the_weights_are_rounded_when_they_are_summed(
    topology, strategies, overlap, dtype, rate, gradients
):
    """As those of a scaled loss are."""

    def updated(strategy):
        with strategy.scope():
            variable = keras.Variable(tf.zeros([5]), dtype=dtype)
            optimizer = keras.optimizers.SGD(rate, global_clipnorm=1e4)
            optimizer.build([variable])
        own = tf.fill([5], gradients[topology.rank % 2])
        strategy.run(tf.function(lambda: optimizer.apply([own], [variable])))
        strategy.synchronize()
        return variable.numpy().astype("float32")

    found = [updated(strategy) for strategy in (strategies[0], tss.SparseStrategy(overlap=overlap))]
    assert found[0].any() and np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)


def test_a_variable_that_is_named_twice_is_refused(partners, strategies):
    with strategies[1].scope():
        variable, optimizer = keras.Variable(tf.zeros([3]), name="shared"), keras.optimizers.SGD(0.1)
        with pytest.raises(ValueError, match="built on the variable 'shared.*' twice"):
            optimizer.build([variable, variable])


def test_float8_models(partners, strategies):
    """Their scales are replaced by their gradients, and have no slots."""
    x, results = np.random.default_rng(0).normal(size=[16, 4]).astype("float32"), []
    for strategy in strategies:
        with strategy.scope():
            model = oracle.start(keras.Sequential([keras.Input([4]), keras.layers.Dense(3)]))
            model.quantize("float8")
            model.compile(adam(), "mse")
        model.fit(x, x[:, :3], batch_size=8, epochs=2, shuffle=False, verbose=0)
        results.append([tf.cast(slices.local(w.value), tf.float32).numpy() for w in model.weights])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_step_that_fails_leaves_what_there_was(partners, strategies):
    """Its first, on all workers, after the graph began: nothing that it has not made is gathered."""
    strategy = strategies[1]
    with strategy.scope():
        ids = keras.Input([1], dtype="int32")
        rows = keras.layers.Flatten()(tss.layers.ShardedEmbedding(5, 4)(ids))
        model = oracle.start(keras.Model(ids, keras.layers.Dense(3)(rows)))
        model.compile(keras.optimizers.Adam(0.1), "mse")
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="has rows 0 to 4"):
        model.fit(np.full([8, 1], 5), np.zeros([8, 3]), batch_size=8, verbose=0)
    strategy.synchronize()
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    model.fit(np.ones([8, 1]), np.zeros([8, 3]), batch_size=8, verbose=0)
    assert all(np.abs(w - e).max() < 0.2 for w, e in zip(model.get_weights(), before, strict=True))


def test_an_optimizer_of_variables_that_another_has_taken_is_refused(partners, strategies):
    """Of what it did nothing would be left."""
    strategy = strategies[1]
    model, first = built(strategy)
    with strategy.scope():
        second = adam()
        second.build(model.trainable_variables)
    custom_step(strategy, model, second)(tf.ones([2, oracle.FEATURES]))
    with pytest.raises(ValueError, match="Adam, was built later. Use one optimizer for each variable"):
        custom_step(strategy, model, first)(tf.ones([2, oracle.FEATURES]))
    strategy.synchronize()


def test_an_optimizer_that_is_refused_while_weights_are_behind_can_be_built_later(partners, strategies):
    strategy = strategies[1]
    model, first = built(strategy)
    custom_step(strategy, model, first)(tf.ones([2, oracle.FEATURES]))
    with strategy.scope():
        second = adam()
        with pytest.raises(RuntimeError, match=r"strategy.synchronize\(\)"):
            second.build(model.trainable_variables)
        strategy.synchronize()
        second.build(model.trainable_variables)
    custom_step(strategy, model, second)(tf.ones([2, oracle.FEATURES]))
    strategy.synchronize()
    assert len(second.variables) == 2 + 2 * len(model.trainable_variables)


def test_another_optimizer_takes_over(partners, strategies):
    strategy = strategies[1]
    model, first = built(strategy)
    x = tf.ones([2, oracle.FEATURES])
    step = custom_step(strategy, model, first)
    step(x)
    with strategy.scope():
        second = adam()
        with pytest.raises(RuntimeError, match="synchronize"):
            second.build(model.trainable_variables)
        strategy.synchronize()
        second = adam()
        second.build(model.trainable_variables)
    custom_step(strategy, model, second)(x)
    strategy.synchronize()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no longer updates"):
        step(x)
    strategy.synchronize()


def test_synchronizing_within_a_function_or_step_is_refused(partners, strategies):
    """What it does would depend on when the function was traced."""
    strategy = strategies[1]
    for within in (tf.function(strategy.synchronize), lambda: strategy.run(strategy.synchronize)):
        with pytest.raises(RuntimeError, match="Call it outside of both"):
            within()
    with strategy.scope():
        strategy.synchronize()


def test_weights_cannot_be_gathered_by_xla(partners, strategies):
    strategy = strategies[1]
    model, optimizer = built(strategy)
    with strategy.scope():
        model.compile(optimizer, "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True: XLA cannot compile"):
        model.evaluate(oracle.dataset(4, 2), verbose=0)
