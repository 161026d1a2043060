"""The tf.distribute API in a user's own loop, against what the P workers' values give in NumPy."""

import contextlib
import copy
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
MODES = pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])


def of_worker(rank, *shape) -> np.ndarray:
    """A value that differs between workers and elements."""
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 10.0 * rank).astype("float32")


def everyone(topology, *shape) -> np.ndarray:
    return np.stack([of_worker(r, *shape) for r in range(topology.num_workers)])


def call(in_function, fn, *args):
    return (tf.function(fn) if in_function else fn)(*args)


def test_replica_context(strategy, topology):
    def replica():
        context = tf.distribute.get_replica_context()
        assert context.num_replicas_in_sync == topology.num_workers
        assert tf.distribute.in_cross_replica_context() is False
        return tf.identity(context.replica_id_in_sync_group)

    assert strategy.num_replicas_in_sync == topology.num_workers
    assert int(strategy.run(replica)) == topology.rank
    assert strategy.experimental_local_results(strategy.run(replica)) == (topology.rank,)
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy


def test_run_passes_structures(strategy):
    out = strategy.run(
        lambda a, b: {"sum": a["x"] + b[0], "none": None}, args=({"x": 1.0},), kwargs={"b": [2.0]}
    )
    assert out == {"sum": 3.0, "none": None}


@MODES
def test_custom_loop(strategy, topology, keras, in_function):
    """One step of plain SGD on a mean over the global batch."""
    x = of_worker(0, 4 * topology.num_workers, 2) / 10
    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensors(x).map(lambda row: row)
    )
    with strategy.scope():
        w = tf.Variable([1.0, -1.0])
        optimizer = keras.optimizers.SGD(0.1)

    def replica(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.matvec(rows, w) ** 2) / len(x)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    def step(rows):
        return strategy.reduce(SUM, strategy.run(replica, args=(rows,)), axis=None)

    (loss,) = (call(in_function, step, rows) for rows in data)
    y = x @ [1.0, -1.0]
    assert float(loss) == pytest.approx(np.mean(y**2), rel=1e-5)
    gradient = 2 * x.T @ y / len(x)
    np.testing.assert_allclose(w.numpy(), [1.0, -1.0] - 0.1 * gradient, rtol=1e-5)


@MODES
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("op, combine", [(SUM, np.sum), (MEAN, np.mean), ("SUM", np.sum)])
def test_reduce(strategy, topology, op, combine, axis, in_function):
    value = tf.constant(of_worker(topology.rank, 2, 3))
    result = call(in_function, lambda v: strategy.reduce(op, strategy.run(lambda: v), axis), value)
    expected = everyone(topology, 2, 3)
    expected = combine(expected, axis=0 if axis is None else (0, axis + 1))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, (0, -1)])
@pytest.mark.parametrize("op, combine", [(SUM, np.sum), (MEAN, np.mean)])
def test_reduce_axes_from_the_end(strategy, topology, op, combine, axis):
    result = strategy.reduce(op, tf.constant(of_worker(topology.rank, 2, 3)), axis)
    expected = combine(everyone(topology, 2, 3), axis=(0, *np.atleast_1d(axis) % 2 + 1))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_reduce_rows_of_uneven_number(strategy, topology):
    rows = [of_worker(r, r + 1, 2) for r in range(topology.num_workers)]
    mine = strategy.run(lambda: tf.constant(rows[topology.rank]))
    result = strategy.reduce(MEAN, mine, axis=0)
    np.testing.assert_allclose(result, np.concatenate(rows).mean(axis=0), rtol=1e-6)


def test_reduce_nests_and_numbers(strategy, topology):
    workers = topology.num_workers
    nest = strategy.run(lambda: {"a": tf.constant(1.0), "b": (tf.constant([topology.rank]),)})
    result = strategy.reduce(SUM, nest, axis=None)
    assert float(result["a"]) == workers and int(result["b"][0][0]) == sum(range(workers))
    assert float(strategy.reduce(SUM, 2.0, axis=None)) == 2.0 * workers
    assert float(strategy.reduce(MEAN, 2.0, axis=None)) == 2.0


@MODES
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_uneven(strategy, topology, axis, in_function):
    shapes = [(r + 1, 2) if axis == 0 else (2, r + 1) for r in range(topology.num_workers)]
    mine = tf.constant(of_worker(topology.rank, *shapes[topology.rank]))
    expected = np.concatenate([of_worker(r, *s) for r, s in enumerate(shapes)], axis=axis)
    outside = call(in_function, lambda v: strategy.gather(strategy.run(lambda: v), axis), mine)
    np.testing.assert_array_equal(outside, expected)

    def replica(v):
        return tf.distribute.get_replica_context().all_gather(v, axis=axis)

    inside = call(in_function, lambda v: strategy.run(replica, args=(v,)), mine)
    np.testing.assert_array_equal(inside, expected)


def in_cond(reduce, x):
    return tf.cond(tf.reduce_sum(x) > -1.0, lambda: reduce(x), lambda: x)


def in_while_loop(reduce, x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, s + reduce(x)), [0, x * 0])[1] / 3


def in_nested_function(reduce, x):
    return tf.function(lambda y: tf.function(reduce)(y))(x)


@pytest.mark.parametrize("where", [in_cond, in_while_loop, in_nested_function])
@pytest.mark.parametrize("op", ["SUM", MEAN])
def test_all_reduce_in_a_function(strategy, topology, where, op):
    def reduce(x):
        return tf.distribute.get_replica_context().all_reduce(op, x)

    @tf.function
    def step(x):
        return strategy.run(lambda: where(reduce, x))

    combine = np.mean if op is MEAN else np.sum
    result = step(tf.constant(of_worker(topology.rank, 3)))
    np.testing.assert_allclose(result, combine(everyone(topology, 3), axis=0), rtol=1e-6)


def test_all_reduce_of_nests_and_slices(strategy, topology):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([topology.rank]), tf.constant([9, 2]))

    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(SUM, {"a": tf.constant(1.0), "b": [tf.constant([2])]}), (
            context.all_reduce(SUM, slices)
        )

    nest, summed = strategy.run(replica)
    workers = topology.num_workers
    assert float(nest["a"]) == workers and int(nest["b"][0][0]) == 2 * workers
    expected = np.zeros([9, 2])
    expected[:workers] = 1
    np.testing.assert_array_equal(tf.convert_to_tensor(summed), expected)


@MODES
def test_gradient_of_all_reduce(strategy, topology, in_function):
    """d/dx_r of sum_s f_s(sum_r x_r), f_s(y) = (s + 1) y: each worker gets the sum of all f_s'."""

    def replica(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.distribute.get_replica_context().all_reduce(SUM, x)
            loss = (topology.rank + 1.0) * y
        return tape.gradient(loss, x)

    gradient = call(in_function, lambda x: strategy.run(replica, args=(x,)), tf.constant(2.0))
    workers = topology.num_workers
    assert float(gradient) == workers * (workers + 1) / 2


def test_gradient_of_a_branch_that_communicates(strategy, topology):
    def replica(x, flag):
        with tf.GradientTape() as tape:
            tape.watch(x)
            context = tf.distribute.get_replica_context()
            y = tf.cond(flag, lambda: context.all_reduce(SUM, x), lambda: x)
        return tape.gradient(y, x)

    step = tf.function(lambda *args: strategy.run(replica, args))
    refused = pytest.raises(NotImplementedError, match="tf.where")
    with refused if topology.num_workers > 1 else contextlib.nullcontext():
        assert float(step(tf.constant(2.0), tf.constant(True))) == 1


@MODES
def test_all_reduce_of_a_variable(topology, in_function):
    """Which optimizers of tf_keras hand over, too, beside gradients."""
    strategy = tss.SparseStrategy(communication=tss.communication.HiTopK(0.01))
    with strategy.scope():
        weights = tf.Variable(tf.ones([20, 20]))
    weights.assign(weights + topology.rank)  # out of step, as where a step of its own assigns

    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(SUM, weights), context.all_reduce("MEAN", weights)

    total, mean = call(in_function, lambda: strategy.run(replica))
    p = topology.num_workers
    np.testing.assert_array_equal(total, np.full([20, 20], p * (p + 1) / 2))
    np.testing.assert_array_equal(mean, np.full([20, 20], (p + 1) / 2))


@MODES
def test_merge_call(strategy, topology, in_function):
    def merge(merged_strategy, value, factor):
        assert merged_strategy is strategy
        assert tf.distribute.in_cross_replica_context()
        return factor * merged_strategy.reduce(SUM, value, axis=None)

    def replica(x):
        return tf.distribute.get_replica_context().merge_call(merge, args=(x, 2.0))

    result = call(in_function, lambda x: strategy.run(replica, args=(x,)), tf.ones([2]))
    np.testing.assert_array_equal(result, [2.0 * topology.num_workers] * 2)


def test_values_and_input_context(strategy, topology):
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group * 1.0)
    )
    assert float(strategy.run(lambda v: v, args=(values,))) == topology.rank
    seen = []

    def make(context):
        seen.append(context)
        size = context.get_per_replica_batch_size(4 * topology.num_workers)
        return tf.data.Dataset.range(size).batch(size)

    (batch,) = strategy.distribute_datasets_from_function(make)
    assert len(strategy.experimental_local_results(batch)[0]) == 4
    assert (seen[0].num_input_pipelines, seen[0].input_pipeline_id) == (
        topology.num_workers,
        topology.rank,
    )
    assert seen[0].num_replicas_in_sync == topology.num_workers


def test_a_model_outside_the_scope_is_warned_of(keras, strategy, topology):
    def fit():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        model.fit(np.ones([8, 3]), np.ones([8, 1]), verbose=0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", category=DeprecationWarning)
        with strategy.scope():
            fit()
    if topology.num_workers > 1 and topology.rank == 0:
        with pytest.warns(UserWarning, match="was not made under strategy.scope"):
            fit()


def test_repr_says_how_many_and_how(strategy, topology):
    assert repr(strategy) == f"SparseStrategy(communication=Dense()) of {topology.num_workers} worker(s)"


def test_numbers_may_be_numpys(comm):
    tss.SparseStrategy(bucket_bytes=np.int64(1 << 20), silence_limit=np.float32(60))


def test_copies_are_refused(strategy):
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(ValueError, match="cannot be copied.*one per process"):
            duplicate(strategy)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"communication": "ring"}, "ring"),
        ({"communication": 3}, "3"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 must be a whole number greater than 0"),
        ({"bucket_bytes": 0.5}, "bucket_bytes=0.5 must be a whole number"),
        ({"bucket_bytes": True}, "bucket_bytes=True must be a whole number"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises((ValueError, TypeError), match=text):
        tss.SparseStrategy(**arguments)


def test_wrong_values(strategy, topology):
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    if topology.num_workers > 1:
        with pytest.raises(TypeError, match="SparseTensor.*to_dense"):
            strategy.reduce(SUM, sparse, axis=None)
    with strategy.scope():
        variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match="mirrored value.*num_replicas_in_sync"):
        strategy.reduce(SUM, variable, axis=None)
    with pytest.raises(NotImplementedError, match="PER_REPLICA.*PER_WORKER"):
        options = tf.distribute.InputOptions(
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
            experimental_place_dataset_on_device=True,
            experimental_fetch_to_device=False,
        )
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4), options)
    with pytest.raises(NotImplementedError, match="TensorFlow 1.*experimental_distribute_dataset"):
        strategy.make_dataset_iterator(tf.data.Dataset.range(4))


def dense_model(strategy, keras, **compile_args):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **compile_args)
    return model


def test_jit_compile(strategy, topology, keras):
    """XLA has no collectives: one sentence says so on every worker, at once."""
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model = dense_model(strategy, keras, jit_compile=True)
    if topology.num_workers == 1:
        model.fit(x, y, verbose=0)
        return
    with pytest.raises(ValueError, match="jit_compile=True.*jit_compile='auto'"):
        model.fit(x, y, verbose=0)


def test_the_scheme_is_not_assigned(strategy):
    with pytest.raises(AttributeError, match=r"communication = 'hitopk'.*Piecewise\("):
        strategy.communication = "hitopk"


def test_jit_compile_auto(strategy):
    import keras

    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model = dense_model(strategy, keras, jit_compile="auto")
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])


def test_buckets_are_of_the_size_told(topology):
    """Three gradients of 1.5 MiB: one by one by default, together where there is room."""
    gradient = tf.ones([3 << 17])
    calls = {}
    for name, arguments in {"default": {}, "told": {"bucket_bytes": 5 << 20}}.items():
        strategy = tss.SparseStrategy(**arguments)
        with strategy.scope():
            variable = tf.Variable(gradient)
        before = strategy.extended.collectives.traffic()[0]
        strategy.extended.gradients.reduce([(gradient, variable)] * 3)
        calls[name] = strategy.extended.collectives.traffic()[0] - before
    several = topology.num_workers > 1
    assert calls == {"default": 3 * several, "told": 1 * several}
