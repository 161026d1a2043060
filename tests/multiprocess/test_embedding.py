"""Sharded tables are whole tables: training with P workers against one process on the global batch.

The reference is keras.layers.Embedding with dense gradients: Keras 3 does not add up repeated ids.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import lars_pto
import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.embedding_models import (
    VOCABULARY,
    dataset,
    dense_gradients,
    start,
    tables_of,
)
from tf_sparse_strategy import gradients
from tf_sparse_strategy.embedding import clipping, lookup, slices

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.01),
    "lazy_adam": lambda: tss.optimizers.LazyAdam(0.02),
    "lazy_adam_clipped": lambda: tss.optimizers.LazyAdam(0.02, global_clipnorm=0.05),
    "row_adagrad": lambda: tss.optimizers.Adagrad(0.1),
}
LAZY = ("lazy_adam", "lazy_adam_clipped")  # dense gradients would move all rows


def one_table(table, width=5):
    inputs = keras.Input((3,), dtype="int32")
    rows = keras.layers.Flatten()(table(VOCABULARY, width)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(rows))


def two_tables(table):
    """Two widths, one narrower than there are workers; the other used twice."""
    inputs = keras.Input((3,), dtype="int32")
    shared = table(VOCABULARY, 6)
    other = keras.layers.Lambda(lambda ids: (ids * 5 + 1) % VOCABULARY)(inputs)
    narrow = table(VOCABULARY, 1)(inputs)
    rows = keras.layers.Concatenate()([shared(inputs), narrow, shared(other)])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))


def one_whole(table):
    """Two tables, the second on all workers."""
    inputs = keras.Input((3,), dtype="int32")
    rows = [kind(VOCABULARY, 4)(inputs) for kind in (table, keras.layers.Embedding)]
    rows = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    return keras.Model(inputs, keras.layers.Dense(1)(rows))


def masked(table):
    inputs = keras.Input((3,), dtype="int32")
    rows = table(VOCABULARY, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(rows)))


def together(table):
    """Two tables looked up by one exchange; one of them twice."""

    class Together(keras.Model):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = table(VOCABULARY, 6), table(VOCABULARY, 1)
            self.out = keras.layers.Dense(1)

        def call(self, ids):
            tables, inputs = [self.wide, self.narrow, self.wide], [ids, ids, (ids * 5 + 1) % VOCABULARY]
            if type(self.wide) is tss.layers.ShardedEmbedding:
                rows = tss.layers.lookup_together(tables, inputs)
            else:
                rows = [layer(i) for layer, i in zip(tables, inputs, strict=True)]
            return self.out(tf.reshape(tf.concat(rows, axis=-1), [-1, 3 * 13]))

    model = Together()
    model(np.zeros([1, 3], "int32"))
    return model


def experiment(optimizer, build=one_table, epochs=5, data=None, **table_args):
    """fit for 20 steps by default; the oracle's scope, nullcontext, gets keras.layers.Embedding."""

    def run(scope):
        alone = scope is contextlib.nullcontext
        with scope():
            kind = keras.layers.Embedding if alone else tss.layers.ShardedEmbedding
            made = OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer()
            if alone and optimizer not in LAZY:
                made = dense_gradients(made)
            model = start(build(lambda *args, **kwargs: kind(*args, **kwargs, **table_args)))
            model.compile(optimizer=made, loss="mse", metrics=["mae"])
        history = model.fit(data or dataset(), epochs=epochs, verbose=0)
        predicted = model.predict(dataset(11, 6), verbose=0)
        dense = {f"dense {i}": w for i, w in enumerate(model.layers[-1].get_weights())}
        logs = {f"log {k}": v for k, v in sorted(history.history.items())}
        return {**tables_of(model), **dense, **logs, "predicted": predicted}

    return run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_as_one_process(comm, strategy, optimizer):
    ours = oracle.compare(comm, strategy, experiment(optimizer))
    for value in ours.values():
        oracle.assert_identical(comm, value)


@pytest.mark.parametrize("build", [two_tables, masked, together])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_models(comm, strategy, build, optimizer):
    oracle.compare(comm, strategy, experiment(optimizer, build))


class Subclassed(keras.Model):
    """A table, by itself or among those of one exchange, and a dense layer; built by `fit`."""

    def __init__(self, table, many=False):
        super().__init__()
        self.table, self.many = table, many
        self.flatten, self.out = keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids):
        lookup_all = tss.layers.lookup_together
        rows = lookup_all([self.table], [ids])[0] if self.many else self.table(ids)
        return self.out(self.flatten(rows))


UNBUILT = {
    "subclassed": Subclassed,
    "together": lambda table: Subclassed(table, many=True),
    "sequential": lambda table: keras.Sequential(
        [table, keras.layers.Flatten(), keras.layers.Dense(1)]
    ),
}


@pytest.mark.parametrize("build", UNBUILT)
def test_models_that_fit_builds(comm, strategy, build):
    """Keras infers their shapes before it makes the table: Dense gets 3 D rows, whatever a worker holds."""

    def run(scope):
        draws = []

        class Constant(keras.initializers.Initializer):
            def __call__(self, shape, dtype=None):
                draws.append(shape)
                return tf.reshape(tf.range(np.prod(shape), dtype=dtype), shape) / 100

        with scope():
            alone = scope is contextlib.nullcontext
            kind = keras.layers.Embedding if alone else tss.layers.ShardedEmbedding
            table = kind(VOCABULARY, 5, embeddings_initializer=Constant())
            made = Subclassed(table) if alone else UNBUILT[build](table)
            made.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
        made.fit(dataset(8), verbose=0)
        if not alone:
            assert len(draws) == (comm.topology.rank == 0)
        start(made)
        made.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        made.fit(dataset(), epochs=2, verbose=0)
        return {str(i): weights for i, weights in enumerate(made.get_weights())}

    oracle.compare(comm, strategy, run)


def assert_drawn_whole(topology, strategy):
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(7, 5, keras.initializers.GlorotNormal(seed=3))
        layer.build()
    whole = np.array(keras.initializers.GlorotNormal(seed=3)((7, 5)))
    np.testing.assert_array_equal(layer.get_weights()[0], whole)
    assert layer.count_params() == 35
    first, end = layer._embeddings.value.partition.bounds(topology.rank)
    np.testing.assert_array_equal(layer._embeddings.numpy(), whole[:, first:end])


def test_initial_values_are_those_of_a_whole_table(topology, strategy):
    """Drawn at global shape: glorot's scale depends on it."""
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


def test_rows_and_gradients_of_any_shape(topology, strategy):
    """Eagerly, with any number of ids on each worker, also none; negative ones count from the end."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        shape = rows, columns = rng.integers(1, 9, 2)
        ids = [rng.integers(-rows, rows, rng.integers(0, 6)) for _ in topology.nodes]
        factors = [rng.normal(size=(i.size, columns)).astype("float32") for i in ids]
        table = rng.normal(size=shape).astype("float32")
        with strategy.scope():
            layer = tss.layers.ShardedEmbedding(int(rows), int(columns), weights=table)
        variable = layer.trainable_variables[0].value
        with tf.GradientTape() as tape:
            found = layer(tf.constant(ids[topology.rank], tf.int64))
            loss = tf.reduce_sum(found * factors[topology.rank])
        np.testing.assert_array_equal(found, table[ids[topology.rank]])
        gradient = gradients.coalesced(tape.gradient(loss, variable.values[0]))
        assert len(set(gradient.indices.numpy())) == gradient.indices.shape[0]
        expected = np.zeros(shape)
        for i, factor in zip(ids, factors, strict=True):
            np.add.at(expected, i, factor)
        mine = variable.partition.of(expected, topology.rank)
        np.testing.assert_allclose(tf.convert_to_tensor(gradient), mine, rtol=1e-5, atol=1e-6)


def test_bytes_are_the_formula(topology, strategy):
    """Ids to all, rows once each way; distinct ones."""
    rank, workers = topology.rank, topology.num_workers
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(50, 7)
        layer.build()
    distinct = [3 + q for q in range(workers)]  # u of each worker
    before = strategy.extended.collectives.traffic()[1].total
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(2 * list(range(distinct[rank])))))
    tape.gradient(loss, layer.trainable_variables[0].value.values[0])
    sent = strategy.extended.collectives.traffic()[1].total - before
    width = layer.trainable_variables[0].value.partition.widths[rank]
    others = sum(distinct) - distinct[rank]
    ids, rows, back = (workers - 1) * (distinct[rank] + 1), others * width, distinct[rank] * (7 - width)
    assert sent == (4 * (ids + rows + back) if workers > 1 else 0)


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


SETTINGS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05, weight_decay=0.01),
    "clipvalue": lambda: keras.optimizers.Adam(
        0.05, clipvalue=0.01, use_ema=True, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=3, clipnorm=0.05),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_options_of_optimizers(comm, strategy, settings):
    """Norms are those of whole tables; the decay, the average and the accumulator are slices."""
    oracle.compare(comm, strategy, experiment(SETTINGS[settings], two_tables, epochs=2))


def test_the_norm_has_whole_tables_in_it(comm, strategy):
    """Where the rows that several workers have of one id count once."""
    oracle.compare(comm, strategy, experiment(SETTINGS["global_clipnorm"], one_whole, epochs=2))


def test_regularizer_and_constraint(comm, strategy):
    """The penalty is that of the whole table, in the loss and in the gradient."""
    run = experiment(
        "sgd",
        embeddings_regularizer=keras.regularizers.L1L2(0.01, 0.02),
        embeddings_constraint=keras.constraints.MaxNorm(0.9, axis=0),
    )
    oracle.compare(comm, strategy, run)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(comm, strategy, policy):
    """Rows travel in 16 bits as the layer would round them; gradients are added up in float32."""
    keras.config.set_dtype_policy(policy)
    try:
        # The other layers' 16-bit sums are grouped by worker.
        oracle.compare(comm, strategy, experiment("sgd", epochs=2), rtol=3e-2, atol=2e-2)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_16_bits_on_the_wire(comm, strategy, wire_dtype):
    def run(scope):
        args = {"wire_dtype": wire_dtype} if scope is not contextlib.nullcontext else {}
        return experiment("sgd", epochs=1, **args)(scope)

    oracle.compare(comm, strategy, run, rtol=2e-2, atol=5e-3)
    with pytest.raises(AssertionError):
        oracle.compare(comm, strategy, run)


def test_loss_scaling_skips_the_step_on_all_workers(comm, strategy):
    """Rows that float16 cannot hold on their way back: nobody takes the step."""

    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**24)

    with strategy.scope():
        model = start(one_table(lambda *args: tss.layers.ShardedEmbedding(*args, wire_dtype="float16")))
        model.compile(optimizer=optimizer(), loss="mse")
    before = model.get_weights()
    model.fit(dataset(8), epochs=1, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**23


def test_an_overflow_among_rows_of_one_id(topology, partners, strategy):
    """On the first worker alone, of an id that all have: nobody takes the step."""
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(3, 4, weights=np.ones([3, 4], "float32"))
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(layer.trainable_variables)
    [table], factor = layer.trainable_variables, np.inf if topology.rank == 0 else 1.0

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) * factor)
        optimizer.apply([tape.gradient(loss, table.value.values[0])], [table])

    strategy.run(step, [tf.constant([1])])
    np.testing.assert_array_equal(layer.get_weights()[0], np.ones([3, 4]))


@pytest.mark.parametrize("optimizer", [lars_pto.LAMB, keras.optimizers.Adafactor, keras.optimizers.Lamb])
def test_refused_optimizers(partners, strategy, optimizer):
    with strategy.scope():
        model = one_table(tss.layers.ShardedEmbedding)
        model.compile(optimizer=optimizer(0.1), loss="mse")
    with pytest.raises(ValueError, match="cannot train the sharded table '.*embeddings"):
        model.fit(dataset(8), verbose=0)


def halved(original):
    return lambda self, *args: [gradient / 2 for gradient in original(self, *args)]


def own_columns_only(original):
    def norms(gradients, table):
        return [tf.norm(g.values if isinstance(g, tf.IndexedSlices) else g) for g in gradients]

    return norms


def not_coalesced(original):
    return lambda gradient: gradient


@pytest.mark.parametrize(
    "owner, name, wrong, optimizer",
    [
        (lookup._Exchange, "_backward", halved, "sgd"),
        (gradients, "coalesced", not_coalesced, "adam"),
        (clipping, "_norms", own_columns_only, "clipnorm"),
    ],
)
def test_the_oracle_finds(comm, partners, strategy, monkeypatch, owner, name, wrong, optimizer):
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    run = experiment(SETTINGS.get(optimizer, optimizer), epochs=2)
    with pytest.raises(AssertionError):
        oracle.compare(comm, strategy, run)


def test_a_draw_per_worker_is_found(topology, partners, strategy, monkeypatch):
    def scatter(self, table, partition, dtype):
        return partition.of(tf.fill(partition.shape, tf.cast(self.rank, dtype)), self.rank)

    monkeypatch.setattr(slices.Slices, "scatter", scatter)
    with pytest.raises(AssertionError):
        assert_drawn_whole(topology, strategy)
