"""Sharded tables in all kinds of models, with all options of optimizers, in 16 bits.

The reference is that of test_embedding.py.
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
    experiment,
    one_table,
    start,
    tokens,
)
from tests.thorough import thorough_if
from tf_sparse_strategy import gradients
from tf_sparse_strategy.embedding import clipping, exchange, slices
from tf_sparse_strategy.gradient_kinds import sum_of_squares


def two_tables(table, width=6):
    """Two widths, one narrower than there are workers; the other used twice."""
    inputs = keras.Input((3,), dtype="int32")
    shared = table(VOCABULARY, width)
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


def together(table, trains=True):
    """Two tables looked up by one exchange; one of them twice."""

    class Together(keras.Model):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = table(VOCABULARY, 6), table(VOCABULARY, 1)
            self.narrow.trainable = trains
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


def one_frozen(table):
    return together(table, trains=False)


def many_inputs(table):
    """Three tables, one with a mask, whose ids are inputs, one of them within a model; looked up together."""
    inputs = keras.Input((3,), dtype="int32")
    inner = keras.Input((3,), dtype="int32")
    nested = keras.Model(inner, table(VOCABULARY, 1)(inner))
    pooled = keras.layers.GlobalAveragePooling1D()(table(VOCABULARY, 4, mask_zero=True)(inputs))
    parts = [keras.layers.Flatten()(x) for x in (table(VOCABULARY, 5)(inputs), nested(inputs))]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([pooled, *parts])))


def test_functional_models_look_up_together(partners, topology, strategy):
    """One exchange of ids, one of rows and one of gradients for all tables whose ids are inputs."""
    with strategy.scope():
        model = many_inputs(tss.layers.ShardedEmbedding)
    variables = model.trainable_variables
    traffic = strategy.extended.collectives.traffic
    before = traffic()[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant(tokens())))
    tape.gradient(loss, [slices.of(v).values[0] for v in variables if slices.of(v) is not None])
    exchanges = 2 * (1 + topology.is_nested)  # the nested model's table by itself
    assert traffic()[0] - before == 3 * exchanges


def test_tables_whose_outputs_are_regularized_are_looked_up_by_themselves(comm, strategy):
    """Keras's call of the layer adds the loss."""

    def build(table):
        inputs = keras.Input((3,), dtype="int32")
        options = ({}, {}, {"activity_regularizer": keras.regularizers.L2(0.1)})
        parts = [keras.layers.Flatten()(table(VOCABULARY, 4, **kwargs)(inputs)) for kwargs in options]
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))

    oracle.compare(comm, strategy, experiment(lambda: keras.optimizers.SGD(0.1), build, predict=False))


ELEMENTWISE = {
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adamax": lambda: keras.optimizers.Adamax(0.02),
    "amsgrad": lambda: keras.optimizers.Adam(0.02, amsgrad=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.02),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("optimizer", thorough_if(lambda name: name != "nadam", ELEMENTWISE))
def test_other_optimizers_that_are_accepted(comm, strategy, optimizer):
    """Those of test_embedding.py are the commonest."""
    oracle.compare(comm, strategy, experiment(ELEMENTWISE[optimizer], one_table, predict=False))


EVERY = [("adam", build) for build in (two_tables, masked, together, one_frozen, many_inputs)]
EVERY += [(name, two_tables) for name in ("momentum", "row_adagrad", "adamw", "lazy_adam")]
EVERY += [("lazy_adam", masked), ("momentum", many_inputs)]


OFTEN = [("adam", build) for build in (two_tables, masked, together, many_inputs)] + [("lazy_adam", masked)]


# Optimizers are those of test_embedding.py.
@pytest.mark.parametrize("of", thorough_if(lambda pair: pair not in OFTEN, EVERY))
def test_models(comm, strategy, of):
    oracle.compare(comm, strategy, experiment(*of))


def test_converted_models_train_as_before(topology, partners, strategy, caplog):
    """One table divided and one too narrow for it, which the log says with the reason."""
    with strategy.scope():
        plain = start(two_tables(keras.layers.Embedding, width=9))
        plain.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        with caplog.at_level("INFO", logger="absl"):
            converted = tss.shard_embeddings(plain, min_rows=VOCABULARY)
    said = [record.getMessage() for record in caplog.records if "shard_embeddings" in record.getMessage()]
    assert len(said) == 2 and any("is divided by columns" in text for text in said)
    assert any(f"its 1 columns are fewer than the {topology.num_workers} workers" in text for text in said)
    for model in (plain, converted):
        model.fit(dataset(), epochs=2, verbose=0)
    for ours, theirs in zip(converted.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


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


SETTINGS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05, weight_decay=0.01),
    "clipvalue": lambda: keras.optimizers.Adam(
        0.05, clipvalue=0.01, use_ema=True, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=2, clipnorm=0.05),
}


@pytest.mark.parametrize("settings", thorough_if(lambda name: name == "clipnorm", SETTINGS))
def test_options_of_optimizers(comm, strategy, settings):
    """Norms are those of whole tables; the decay, the average and the accumulator are slices."""
    oracle.compare(comm, strategy, experiment(SETTINGS[settings], two_tables))


def test_the_norm_has_whole_tables_in_it(comm, strategy):
    """Where the rows that several workers have of one id count once."""
    oracle.compare(comm, strategy, experiment(SETTINGS["global_clipnorm"], one_whole))


def test_regularizer_and_constraint(comm, strategy):
    """The penalty is that of the whole table, in the loss and in the gradient."""
    run = experiment(
        "sgd",
        embeddings_regularizer=keras.regularizers.L1L2(0.01, 0.02),
        embeddings_constraint=keras.constraints.MaxNorm(0.9, axis=0),
    )
    oracle.compare(comm, strategy, run)


@pytest.mark.parametrize(
    "policy", thorough_if(lambda policy: policy == "mixed_float16", ["mixed_bfloat16", "mixed_float16"])
)
def test_mixed_precision(comm, strategy, policy):
    """Rows travel in 16 bits as the layer would round them; gradients are added up in float32."""
    keras.config.set_dtype_policy(policy)
    try:
        # The other layers' 16-bit sums are grouped by worker.
        oracle.compare(comm, strategy, experiment("sgd"), rtol=3e-2, atol=2e-2)
    finally:
        keras.config.set_dtype_policy("float32")


def test_gradients_of_16_bits_are_added_up_in_float32(strategy, topology):
    """Row 0 is looked up 257 times by each worker: bfloat16 would stop counting at 256."""
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(3, 2 * topology.num_workers, dtype="mixed_bfloat16")
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)
    before = layer.get_weights()[0]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(tf.zeros([257], tf.int32)), tf.float32))
        [gradient] = tape.gradient(loss, [v.value for v in layer.trainable_variables])
        optimizer.apply([gradient], layer.trainable_variables)

    strategy.run(step)
    moved = np.zeros_like(before)
    moved[0] = 257 * topology.num_workers
    np.testing.assert_array_equal(layer.get_weights()[0], before - moved)


@pytest.mark.parametrize("wire_dtype", thorough_if(lambda dtype: dtype == "float16", ["float16", "bfloat16"]))
def test_16_bits_on_the_wire(comm, strategy, wire_dtype):
    def run(scope):
        args = {"wire_dtype": wire_dtype} if scope is not contextlib.nullcontext else {}
        return experiment("sgd", **args)(scope)

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
    return lambda gradients, table: [sum_of_squares(g) for g in gradients]


def not_coalesced(original):
    return lambda gradient: gradient


@pytest.mark.parametrize(
    "owner, name, wrong, optimizer",
    [
        (exchange.Exchange, "_backward", halved, "sgd"),
        (gradients, "coalesced", not_coalesced, "adam"),
        (clipping, "_squares", own_columns_only, "clipnorm"),
    ],
)
def test_the_oracle_finds(comm, partners, strategy, monkeypatch, owner, name, wrong, optimizer):
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    run = experiment(SETTINGS.get(optimizer, optimizer), predict=False)
    with pytest.raises(AssertionError):
        oracle.compare(comm, strategy, run)


def test_tables_that_are_recomputed_are_trained(strategy, partners):
    """A lookup ahead of the layer's call, with others', would be no part of what is computed again."""
    with strategy.scope(), keras.RematScope(mode="list_of_layers", layer_names=["one", "other"]):
        ids = [keras.Input((3,), dtype="int32") for _ in range(2)]
        tables = [tss.layers.ShardedEmbedding(VOCABULARY, 4, name=name) for name in ("one", "other")]
        rows = [table(x) for table, x in zip(tables, ids, strict=True)]
        model = keras.Model(ids, keras.layers.Add()(rows))
        model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(2 * [np.ones([4, 3], "int32")], np.ones([4, 3, 4]), verbose=0)
    for was, now in zip(before, model.get_weights(), strict=True):
        assert np.any(was != now)


@pytest.mark.parametrize("optimizer", [tss.optimizers.Adagrad, tss.optimizers.LazyAdam])
def test_gradients_that_are_added_up_are_not_again(partners, topology, strategy, optimizer):
    """`tf.unique` is for the own ids, and for those of all workers' gradients."""
    with strategy.scope():
        layer = tss.layers.ShardedEmbedding(VOCABULARY, 4)
        layer.build()
        made = optimizer(0.1)
        made.build(layer.trainable_variables)

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        made.apply(tape.gradient(loss, [v.value for v in layer.trainable_variables]))

    step = tf.function(lambda ids: strategy.run(replica, args=(ids,)))
    graph = step.get_concrete_function(tf.constant([1, 3, 1])).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert sum(node.op == "Unique" for node in nodes) == 2 + topology.is_nested
