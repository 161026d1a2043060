"""Sharded tables are whole tables: training with P workers against one process on the global batch.

The reference is keras.layers.Embedding with dense gradients: Keras 3 does not add up repeated ids.
"""

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import OPTIMIZERS, experiment, one_table, start
from tests.thorough import P, thorough_if
from tf_sparse_strategy import gradient_kinds, legacy_keras
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.topology import Group

OFTEN = ("sgd", "lazy_adam_clipped")
if P < 4:
    OFTEN += ("adamw", "row_adagrad")


@pytest.mark.parametrize("optimizer", thorough_if(lambda name: name not in OFTEN, OPTIMIZERS))
def test_same_as_one_process(comm, strategy, optimizer):
    """After 20 steps; the last of an epoch has rows for one worker alone."""
    ours = oracle.compare(comm, strategy, experiment(optimizer, predict=optimizer == "sgd"))
    for value in ours.values():
        oracle.assert_identical(comm, value)


@pytest.mark.parametrize("kind", thorough_if(lambda kind: kind == "sharded", ["whole", "sharded", "delayed"]))
def test_rows_rest_when_a_workers_files_have_ended(comm, topology, partners, shared_tmp, kind):
    """It goes on with rows that count for nothing, which LazyAdam would move by their momentum."""
    p, strategy = topology.num_workers, tss.SparseStrategy(delay_rows=kind == "delayed")
    layer = keras.layers.Embedding if kind == "whole" else tss.layers.ShardedEmbedding
    paths = [str(shared_tmp / f"{rank}") for rank in range(p)]
    with open(paths[topology.rank], "w") as file:  # ids that nobody else reads
        file.write(f"{topology.rank}\n" * (2 if topology.rank else 10))
    comm.barrier()

    def table(steps):
        numbers = tf.data.TextLineDataset(paths).map(lambda x: tf.strings.to_number([x]))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
        data = numbers.map(lambda x: (x, tf.ones([1]))).batch(2 * p).with_options(options)
        with strategy.scope():
            ids = keras.Input([1])
            rows = keras.layers.Flatten()(layer(p, 3, name="table")(ids))
            model = start(keras.Model(ids, keras.layers.Dense(1)(rows)))
            model.compile(tss.optimizers.LazyAdam(0.1), "mse")
        model.fit(data, steps_per_epoch=steps, verbose=0)
        return model.get_layer("table").get_weights()[0]

    once, often = table(1), table(5)
    np.testing.assert_array_equal(once[1:], often[1:])
    assert (once[0] != often[0]).all()


def test_loss_scaling_does_not_look_at_rows_of_no_account(partners, strategy):
    """Whose lookups are zeros, at which this loss has no gradient."""
    with strategy.scope():
        ids = keras.Input([2], dtype="int32")
        rows = tss.layers.ShardedEmbedding(13, 4)(ids)
        away = keras.layers.Lambda(lambda r: tf.norm(r[:, 0] - r[:, 1], axis=-1, keepdims=True))(rows)
        model = start(keras.Model(ids, keras.layers.Dense(1)(away)))
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0)
        model.compile(scaled, "mse")
    x = np.arange(26, dtype="int32").reshape(13, 2)[:9] % 13
    model.fit(x, np.ones([9, 1]), batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert scaled.dynamic_scale.numpy() == 8 and scaled.iterations.numpy() == 4


def assert_drawn_whole(topology, strategy, initializer=keras.initializers.GlorotNormal):
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(7, 5, initializer(seed=3))
        layer.build()
    whole = np.array(initializer(seed=3)((7, 5)))
    np.testing.assert_array_equal(layer.get_weights()[0], whole)
    assert layer.count_params() == 35
    first, end = layer._embeddings.value.partition.bounds(topology.rank)
    np.testing.assert_array_equal(layer._embeddings.numpy(), whole[:, first:end])


def test_initial_values_are_those_of_a_whole_table(topology, strategy):
    """Drawn at global shape: glorot's scale depends on it."""
    assert_drawn_whole(topology, strategy)


@pytest.mark.parametrize("initializer", [keras.initializers.RandomUniform, keras.initializers.RandomNormal])
def test_tables_that_are_drawn_in_pieces_are_those_of_a_whole_table(
    topology, strategy, monkeypatch, initializer
):
    monkeypatch.setattr(slices, "DRAWN", (3 * 5, 3 * 5))  # elements: three rows at a time
    if topology.num_workers > 1:
        monkeypatch.delattr(slices.Slices, "scatter")  # which would deal a whole table out
    assert_drawn_whole(topology, strategy, initializer)


@pytest.mark.parametrize("initializer", [keras.initializers.RandomUniform, keras.initializers.GlorotNormal])
def test_a_table_that_a_step_asks_for_first(topology, strategy, initializer):
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(7, 5, initializer(seed=3))
    step = tf.function(lambda ids: strategy.run(layer, args=(ids,)))
    np.testing.assert_array_equal(step(tf.constant([2, 6])), np.array(initializer(seed=3)((7, 5)))[[2, 6]])
    np.testing.assert_array_equal(layer.get_weights()[0], initializer(seed=3)((7, 5)))


@pytest.mark.parametrize(
    "initializers",
    [
        (keras.initializers.RandomUniform(seed=0), keras.initializers.RandomUniform(-1, 1, seed=1)),
        (keras.initializers.RandomUniform(seed=0), keras.initializers.RandomNormal(seed=0)),
        (keras.initializers.RandomUniform(seed=0), keras.initializers.GlorotNormal(seed=0)),
        (keras.initializers.GlorotNormal(seed=0), keras.initializers.RandomUniform(seed=0)),
    ],
)
def test_the_first_workers_initializer_counts(topology, strategy, initializers):
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(7, 5, initializers[min(topology.rank, 1)])
        layer.build()
    np.testing.assert_array_equal(layer.get_weights()[0], initializers[0]((7, 5)))


def test_a_draw_per_worker_is_found(topology, partners, strategy, monkeypatch):
    def scatter(self, table, partition, dtype):
        own = partition.of(tf.fill(partition.shape, tf.cast(self.rank, dtype)), self.rank)
        yield 0, partition.rows, own

    monkeypatch.setattr(slices.Slices, "scatter", scatter)
    with pytest.raises(AssertionError):
        assert_drawn_whole(topology, strategy)


def fails(shape, dtype=None):
    raise OSError("no table in this file")


@pytest.mark.parametrize(
    "draw, named",
    [(fails, "no table in this file"), (lambda shape, dtype: tf.zeros([7, 4]), r"drew \(7, 4\)")],
)
def test_a_draw_that_fails_fails_on_all(topology, strategy, draw, named):
    """The first worker's alone is asked for; the others wait for its columns."""
    raised = (OSError, ValueError) if topology.rank == 0 else RuntimeError
    with strategy.scope(), pytest.raises(raised, match=named):
        tss.layers.ShardedEmbedding(7, 5, embeddings_initializer=draw).build()


def test_conversion_refuses_what_workers_drew_by_themselves(strategy):
    model = one_table(keras.layers.Embedding)
    with strategy.scope(), pytest.raises(ValueError, match="was not made in the scope of this strategy"):
        tss.shard_embeddings(model, placement="columns")


EVERYWHERE_ALIKE = hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.generate],  # a worker that tried again what failed would wait for the others
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


NUMBERS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 6), st.integers(0, 99))


@EVERYWHERE_ALIKE
@hypothesis.given(drawn=NUMBERS)
def test_rows_and_gradients_of_any_shape(comm, topology, strategy, drawn):
    """Eagerly, with any number of ids on each worker, also none; negative ones count from the end."""
    rows, columns, most, seed = comm.broadcast(tf.constant(drawn)).numpy().tolist()  # all take the first's
    shape, rng = (rows, columns), np.random.default_rng(seed)
    ids = [rng.integers(-rows, rows, rng.integers(0, most + 1)) for _ in topology.nodes]
    factors = [rng.normal(size=(i.size, columns)).astype("float32") for i in ids]
    table = rng.normal(size=shape).astype("float32")
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(rows, columns, weights=table)
    variable = layer.trainable_variables[0].value
    with tf.GradientTape() as tape:
        found = layer(tf.constant(ids[topology.rank], tf.int64))
        loss = tf.reduce_sum(found * factors[topology.rank])
    np.testing.assert_array_equal(found, table[ids[topology.rank]])
    gradient = gradient_kinds.coalesced(tape.gradient(loss, variable.values[0]))
    assert len(set(gradient.indices.numpy())) == gradient.indices.shape[0]
    expected = np.zeros(shape)
    for i, factor in zip(ids, factors, strict=True):
        np.add.at(expected, i, factor)
    mine = variable.partition.of(expected, topology.rank)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), mine, rtol=1e-5, atol=1e-6)


def elements_sent(numbers, columns, own):
    """By one exchange among workers of which each has so many distinct ids and columns; `own` is this one."""
    ids = (len(numbers) - 1) * (numbers[own] + 1)
    rows, back = (sum(x) - x[own] for x in (numbers, columns))
    return ids + rows * columns[own] + numbers[own] * back


@pytest.mark.parametrize("together", [True, False])
def test_bytes_are_the_formula(topology, together):
    """Ids to all, rows once each way; distinct ones: of a worker, or of a node and then of its workers."""
    strategy = tss.SparseStrategy()
    if not together:
        strategy.extended.slices.group = Group.GLOBAL
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(50, 7)
        layer.build()
    rank, distinct = topology.rank, [3 + q for q in range(topology.num_workers)]  # u of each worker
    before = strategy.extended.collectives.traffic()[1].total
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(2 * list(range(distinct[rank])))))
    tape.gradient(loss, layer.trainable_variables[0].value.values[0])
    sent = strategy.extended.collectives.traffic()[1].total - before
    widths = layer.trainable_variables[0].value.partition.widths
    if together and topology.is_nested:
        across, within = (topology.ranks(group) for group in (Group.CROSS, Group.LOCAL))
        unions = [max(distinct[q] for q in topology.of(rank).ranks(Group.LOCAL)) for rank in across]
        columns = [sum(widths[q] for q in topology.of(rank).ranks(Group.CROSS)) for rank in within]
        elements = elements_sent(unions, [widths[q] for q in across], topology.index(Group.CROSS))
        elements += elements_sent([distinct[q] for q in within], columns, topology.index(Group.LOCAL))
    else:
        elements = elements_sent(distinct, widths, rank)
    assert sent == 4 * elements


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("kind", [tss.layers.ShardedEmbedding, legacy_keras.ShardedEmbedding])
def test_gradients_of_a_frozen_table_stay_at_home(topology, strategy, kind, trainable):
    """Nobody asks for them, but a program's collectives are never left out."""
    with strategy.scope():
        layer = kind(50, 2 * topology.num_workers)
        layer(tf.constant([0]))
        other = tf.Variable(2.0)
    layer.trainable = trainable

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = other * tf.reduce_sum(layer(tf.constant([1, 2, 3])))
        tables = [slices.tensorflows(w).values[0] for w in layer.trainable_variables]
        return tape.gradient(loss, [other.values[0], *tables])

    strategy.run(step)
    before = strategy.extended.collectives.traffic()[0]
    strategy.run(step)
    exchanges = (topology.num_workers > 1) * (1 + topology.is_nested)
    assert strategy.extended.collectives.traffic()[0] - before == (2 + trainable) * exchanges


@pytest.mark.parametrize("trainable", [True, False])
def test_nor_do_they_travel_with_those_of_others(topology, strategy, trainable):
    with strategy.scope():
        layers = [tss.layers.ShardedEmbedding(50, 2 * topology.num_workers) for _ in range(2)]
        for layer in layers:
            layer.build()
    layers[0].trainable = trainable
    comm, ids = strategy.extended.collectives, tf.constant([1, 2, 3])

    def sent():
        before = comm.traffic()[1].total
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(x) for x in tss.layers.lookup_together(layers, [ids, ids])])
        forward = comm.traffic()[1].total
        tape.gradient(loss, layers[1].trainable_variables[0].value.values[0])
        return forward - before, comm.traffic()[1].total - forward

    of_rows, of_gradients = strategy.run(sent)
    of_ids = of_rows - of_gradients if trainable else of_rows - 2 * of_gradients
    assert of_ids == (topology.num_workers - 1) * 4 * 2 * (3 + 1) or topology.is_nested


def test_all_convert_alike(topology, strategy):
    """Also where workers count ids of batches of their own, of which some would make it pay and some not."""
    links = LinkModel(0.0, 1e-9, 0.0, 1e-9, phase=1.0)
    with strategy.scope():
        inputs = keras.Input([3], dtype="int32")
        plain = keras.Model(inputs, keras.layers.Embedding(50, 2 * topology.num_workers)(inputs))
        ids = 1 << (40 * (topology.rank % 2))
        converted = tss.shard_embeddings(plain, min_rows=1, ids_per_step=ids, links=links)
    is_divided = type(converted.layers[1]) is tss.layers.ShardedEmbedding
    assert is_divided == (topology.num_workers == 1)


@pytest.mark.parametrize("wrong", [9, -8, 1 << 40])
def test_an_id_out_of_range_is_an_error_on_all(topology, strategy, wrong):
    last = topology.num_workers - 1
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(7, 5, name="words")
        layer.build()
    ids = tf.constant([1, wrong if topology.rank == last else 2], tf.int64)
    heard = wrong if topology.rank == last else min(wrong, 2**31 - 1)
    named = rf"'words' has rows 0 to 6(.|\n)*{heard}(.|\n)*on rank(.|\n)*{last}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=named):
        layer(ids)


def test_a_table_that_the_loss_does_not_read_rests(strategy):
    """TensorFlow gives what is looked up with others a gradient of zeros, by which AdamW would decay it."""
    with strategy.scope():
        ids = [keras.Input([2], dtype="int32") for _ in range(2)]
        rows = [tss.layers.ShardedEmbedding(9, 4)(one) for one in ids]
        heads = [keras.layers.Dense(1)(keras.layers.Flatten()(one)) for one in rows]
        model = start(keras.Model(ids, heads))
        model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), loss=["mse", None])
    tables = [layer for layer in model.layers if isinstance(layer, tss.layers.ShardedEmbedding)]
    before = [table.get_weights()[0] for table in tables]
    x = np.arange(16).reshape(8, 2) % 9
    model.fit([x, x], [np.ones([8, 1])] * 2, batch_size=8, verbose=0)
    moved = [(table.get_weights()[0] != was).any() for table, was in zip(tables, before, strict=True)]
    assert moved == [True, False]


def test_a_call_of_ones_own_looks_up_its_own_ids(strategy):
    class Hashed(tss.layers.ShardedEmbedding):
        def call(self, ids):
            return super().call(ids % self.input_dim)

    with strategy.scope():
        ids = [keras.Input([2], dtype="int64") for _ in range(2)]
        layers = [Hashed(9, 4) for _ in ids]
        model = start(keras.Model(ids, [layer(one) for layer, one in zip(layers, ids, strict=True)]))
    x = np.array([[123456, 3], [8, 1 << 40]])
    with pytest.raises(ValueError, match="a call of its own"):
        tss.layers.lookup_together(layers, [x, x])
    for layer, rows in zip(layers, model.predict([x, x], verbose=0), strict=True):
        np.testing.assert_array_equal(rows, layer.get_weights()[0][x % 9])


def test_a_state_of_parts_is_refused(strategy, topology):
    """Which Orbax would write as the whole."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), tss.layers.ShardedEmbedding(9, 4)])
        model.compile("sgd")
    if topology.num_workers == 1:
        assert model.get_state_tree()
        return
    with pytest.raises(NotImplementedError, match="Orbax"):
        model.get_state_tree()
