"""Models converted by shard_embeddings: what is copied, what stays whole, what is refused."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy.optimizers import LazyAdam


def model_of_embeddings():
    ids, norm = keras.Input([3], dtype="int32"), keras.constraints.MaxNorm(axis=1)
    parts = [
        keras.layers.Embedding(50, 6, name="large")(ids),
        keras.layers.Embedding(7, 6, name="small")(ids),
        keras.layers.Embedding(60, 6, embeddings_constraint=norm, name="rows")(ids),
    ]
    return keras.Model(ids, keras.layers.Concatenate()(parts))


def test_conversion():
    ids = np.array([[1, 2, 3]])
    with tss.SparseStrategy().scope():
        model = model_of_embeddings()
        converted = tss.shard_embeddings(model, min_rows=10)
        everything = tss.shard_embeddings(model, placement="columns")
        np.testing.assert_array_equal(converted(ids), model(ids))
    kinds = {layer.name: type(layer) for layer in converted.layers}
    assert kinds["large"] is tss.layers.ShardedEmbedding
    assert kinds["small"] is kinds["rows"] is keras.layers.Embedding
    assert type(everything.get_layer("small")) is tss.layers.ShardedEmbedding
    assert type(everything.get_layer("rows")) is keras.layers.Embedding


def test_conversion_keeps_what_layers_were_adapted_to():
    """Vocabularies, means and variances, which configurations do not have."""
    texts, numbers = np.array(["b a", "a c", "c c"]), np.array([[1.0], [2.0], [6.0]], "float32")
    with tss.SparseStrategy().scope():
        text, size = keras.Input([], dtype="string"), keras.Input([1])
        words = keras.layers.TextVectorization(output_sequence_length=2)
        scaled, steps = keras.layers.Normalization(), keras.layers.Discretization(num_bins=2)
        words.adapt(texts)
        scaled.adapt(numbers)
        steps.adapt(numbers)
        rows = keras.layers.Flatten()(keras.layers.Embedding(50, 3)(words(text)))
        parts = [rows, scaled(size), keras.ops.cast(steps(size), "float32")]
        model = keras.Model([text, size], keras.layers.Concatenate()(parts))
        converted = tss.shard_embeddings(model, placement="columns")
        inputs = [tf.constant(texts), tf.constant(numbers)]
        found = converted(inputs)
    np.testing.assert_array_equal(found, model(inputs))
    assert any(type(layer) is tss.layers.ShardedEmbedding for layer in converted.layers)


def test_conversion_leaves_tables_whole_that_the_optimizer_could_not_train():
    with tss.SparseStrategy().scope():
        model = model_of_embeddings()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb(0.1)), "mse")
        converted = tss.shard_embeddings(model, placement="columns")
    assert type(converted.get_layer("large")) is keras.layers.Embedding


def test_conversion_of_a_compiled_model_and_of_a_wrapper():
    with tss.SparseStrategy().scope():
        ids, wrapped = keras.Input([4, 3], dtype="int32"), keras.layers.Embedding(50, 6)
        model = keras.Model(ids, keras.layers.TimeDistributed(wrapped)(ids))
        model.compile(optimizer=LazyAdam(0.3), loss="mse")
        converted = tss.shard_embeddings(model, placement="columns")
    assert type(converted.layers[1].layer) is keras.layers.Embedding
    assert type(converted.optimizer) is LazyAdam and converted.optimizer is not model.optimizer
    assert converted.optimizer.get_config() == model.optimizer.get_config()


def test_conversions_that_cannot_be():
    with pytest.raises(ValueError, match=r"with strategy.scope\(\)"):
        tss.shard_embeddings(model_of_embeddings())
    with pytest.raises(ValueError, match="placement='rows'"):
        tss.shard_embeddings(model_of_embeddings(), placement="rows")

    class Own(keras.Model):
        pass

    with tss.SparseStrategy().scope():
        with pytest.raises(ValueError, match="a class of its own"):
            tss.shard_embeddings(Own())
        with pytest.raises(TypeError, match="models of Keras 3, not"):
            tss.shard_embeddings(keras.layers.Embedding(7, 4))


def test_conversion_of_a_model_made_outside_the_scope():
    """Each worker drew its own weights."""
    model = model_of_embeddings()
    with tss.SparseStrategy().scope(), pytest.raises(ValueError, match="'large/embeddings' of .* inside"):
        tss.shard_embeddings(model)


def a_model(strategy, adapt=lambda ids: ids):
    """Of one table, and a Dense."""
    with strategy.scope():
        ids = keras.Input([3], dtype="int32")
        rows = keras.layers.Flatten()(keras.layers.Embedding(50, 6, name="table")(adapt(ids)))
        return keras.Model(ids, keras.layers.Dense(1)(rows))


def test_what_a_model_is_compiled_with_needs_no_configuration():
    def loss(y, prediction):
        return keras.ops.mean(keras.ops.square(y - prediction), axis=-1)

    class Own(keras.metrics.MeanSquaredError):
        pass

    strategy, metric = tss.SparseStrategy(), Own(name="own")
    model = a_model(strategy)
    with strategy.scope():
        metrics = [metric, lambda y, prediction: prediction[:, 0]]
        model.compile(keras.optimizers.Adam(0.3), loss, metrics=metrics, run_eagerly=True)
        converted = tss.shard_embeddings(model, placement="columns")
    assert converted.loss is loss and converted.run_eagerly
    assert converted.optimizer.get_config() == model.optimizer.get_config()
    logs = converted.fit(np.ones([4, 3], "int32"), np.ones([4, 1]), verbose=0).history
    assert "own" in logs and "lambda" in " ".join(logs)


def test_models_of_a_class_of_their_own_keep_it_or_are_refused():
    """Keras copies those that are made of inputs and outputs; of others it would take the standard step."""

    class OwnStep(keras.Model):
        def train_step(self, data):
            return {"own": tf.constant(3.0)}

    class MadeOtherwise(OwnStep):
        def __init__(self, rows):
            ids = keras.Input([3], dtype="int32")
            super().__init__(ids, keras.layers.Embedding(rows, 6)(ids))

    class OwnSequence(keras.Sequential):
        def train_step(self, data):
            return {}

    strategy = tss.SparseStrategy()
    with strategy.scope():
        inner = a_model(strategy)
        model = OwnStep(inner.input, inner.output)
        model.compile()
        converted = tss.shard_embeddings(model, placement="columns")
        assert converted.train_step(None)["own"] == 3.0
        ids = keras.Input([3], dtype="int32")
        for own in (MadeOtherwise(50), OwnSequence([ids, keras.layers.Embedding(50, 6)])):
            for refused in (own, keras.Model(ids, own(ids))):
                with pytest.raises(ValueError, match=f"{own.name!r} is of a class of its own"):
                    tss.shard_embeddings(refused, placement="columns")


_table = None  # as a script has it


def times_transposed(x, table):
    return x @ keras.ops.transpose(table)


READERS = ["operation", "variable in a Lambda", "layer in a Lambda", "global", "argument", "partial"]


@pytest.mark.parametrize("reader", READERS)
def test_tables_that_something_else_reads_are_read_by_both(reader):
    """What is trained is what the output is computed with."""
    global _table
    strategy = tss.SparseStrategy()
    with strategy.scope():
        ids, table = keras.Input([3], dtype="int32"), keras.layers.Embedding(50, 6)
        _table, rows, held = table, table(ids), table.embeddings
        read = {
            "operation": lambda x: keras.ops.einsum("btd,vd->btv", x, held),
            "variable in a Lambda": keras.layers.Lambda(lambda x: x @ keras.ops.transpose(held)),
            "layer in a Lambda": keras.layers.Lambda(lambda x: x @ keras.ops.transpose(table.embeddings)),
            "global": keras.layers.Lambda(lambda x: x @ keras.ops.transpose(_table.embeddings)),
            "argument": keras.layers.Lambda(times_transposed, arguments={"table": held}),
            "partial": keras.layers.Lambda(functools.partial(times_transposed, table=held)),
        }[reader]
        model = keras.Model(ids, read(rows))
        converted = tss.shard_embeddings(model, placement="columns")
    assert all(type(layer) is not tss.layers.ShardedEmbedding for layer in converted.layers)
    given = np.array([[1, 2, 3]])
    before = converted(given).numpy()
    [weight] = converted.trainable_variables
    weight.assign(2 * weight)
    np.testing.assert_allclose(converted(given), 4 * before, rtol=1e-5)


def test_layers_that_something_else_reads_are_read_by_both():
    """A tied autoencoder beside a large table, and a table within a wrapper."""
    strategy = tss.SparseStrategy()
    with strategy.scope():
        ids, inner = keras.Input([4, 3], dtype="int32"), keras.layers.Embedding(50, 6)
        encode, decode = keras.layers.Dense(2, use_bias=False), None
        encode.build([None, 6])
        decode = keras.layers.Lambda(lambda x: x @ keras.ops.transpose(encode.kernel))
        rows = keras.layers.TimeDistributed(inner)(ids)
        whole = keras.layers.Lambda(lambda x: x @ keras.ops.transpose(inner.embeddings))
        beside = keras.layers.Embedding(50, 6, name="beside")(ids)
        model = keras.Model(ids, [whole(rows), decode(encode(beside))])
        converted = tss.shard_embeddings(model, placement="columns")
    assert type(converted.get_layer("beside")) is tss.layers.ShardedEmbedding
    held = {id(weight) for weight in converted.trainable_variables}
    assert {id(encode.kernel), id(inner.embeddings)} <= held


def test_models_that_are_not_built_and_layers_that_are_models():
    class Head(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    with tss.SparseStrategy().scope():
        unbuilt = keras.Sequential([keras.layers.Embedding(50, 6), keras.layers.Dense(1)])
        converted = tss.shard_embeddings(unbuilt, placement="columns")
        assert type(converted.layers[0]) is tss.layers.ShardedEmbedding
        ids = keras.Input([3], dtype="int32")
        rows = keras.layers.Embedding(50, 6)(ids)
        model = keras.Model(ids, Head()(rows))
        converted = tss.shard_embeddings(model, placement="columns")
        np.testing.assert_allclose(converted(np.ones([1, 3])), model(np.ones([1, 3])), rtol=1e-6)
    assert any(type(layer) is tss.layers.ShardedEmbedding for layer in converted.layers)


def test_sparse_inputs_that_a_copy_would_lose_are_refused():
    with tss.SparseStrategy().scope():
        layers = [tss.layers.ShardedEmbedding(9, 2, combiner="mean")]
        sequence = keras.Sequential([keras.Input([4], dtype="int32", sparse=True), *layers])
        ids = keras.Input([4], dtype="int32", sparse=True)
        for refused in (sequence, keras.Model(ids, sequence(ids))):
            with pytest.raises(ValueError, match=f"{sequence.name!r} has sparse or ragged inputs"):
                tss.shard_embeddings(refused)


class Features(keras.layers.Layer):
    """A layer with layers that are adapted."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scaled, self.words = keras.layers.Normalization(), keras.layers.StringLookup()

    def call(self, x):
        return self.scaled(x)


def test_layers_within_layers_keep_what_they_were_adapted_to():
    numbers, strategy = np.array([[1.0], [2.0], [6.0]], "float32"), tss.SparseStrategy()
    with strategy.scope():
        size, features = keras.Input([1]), Features()
        features.scaled.adapt(numbers)
        features.words.adapt(np.array(["b", "a"]))
        model = keras.Model(size, features(size))
        converted = tss.shard_embeddings(model, placement="columns")
        np.testing.assert_array_equal(converted(numbers), model(numbers))
    copied = converted.layers[1]
    assert copied is not features and copied.words.get_vocabulary() == features.words.get_vocabulary()
    assert np.ptp(model(numbers)) > 1


def test_inputs_stay_sparse_or_optional():
    strategy = tss.SparseStrategy()
    with strategy.scope():
        ids = keras.Input([4], dtype="int32", sparse=True, name="ids")
        other = keras.Input([1], optional=True, name="other")
        mean = tss.layers.ShardedEmbedding(9, 2, combiner="mean")(ids)
        model = keras.Model({"ids": ids, "other": other}, keras.layers.Add()([mean, mean]))
        converted = tss.shard_embeddings(model, placement="columns")
    assert [converted.input[n].sparse for n in ("ids", "other")] == [True, False]
    assert converted.get_layer("other").optional
    given = {"ids": tf.SparseTensor([[0, 0], [1, 2]], [3, 5], [2, 4]), "other": None}
    np.testing.assert_array_equal(converted(given), model(given))


def test_optimizers_within_others_are_asked():
    strategy = tss.SparseStrategy()
    model = a_model(strategy)
    each = keras.optimizers.OptimizerMap(keras.optimizers.Lamb(0.1), {"dense": keras.optimizers.SGD(0.1)})
    with strategy.scope():
        model.compile(keras.optimizers.MultiOptimizer(each), "mse")
        converted = tss.shard_embeddings(model, placement="columns")
    assert type(converted.get_layer("table")) is keras.layers.Embedding


def test_what_is_frozen_within_a_layer_stays_frozen():
    """Layers within layers, and single weights, of which no configuration tells."""
    with tss.SparseStrategy().scope():
        ids = keras.Input([3], dtype="int32")
        rows = keras.layers.Embedding(50, 4, name="words")(ids)
        attention, dense = keras.layers.MultiHeadAttention(2, 2), keras.layers.Dense(2, name="dense")
        model = keras.Model(ids, dense(attention(rows, rows)))
        attention.trainable = False
        dense.kernel.trainable = False
        converted = tss.shard_embeddings(model, placement="columns")
    paths = {v.path for v in model.trainable_variables}
    assert paths == {"words/embeddings", "dense/bias"}
    assert {v.path for v in converted.trainable_variables} == paths
    assert not converted.get_layer(attention.name).trainable


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer], ids=["plain", "scaled"])
def test_the_optimizer_keeps_its_rate_and_what_is_not_decayed(wrap):
    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):  # no get_config
            return 0.1 / (1 + tf.cast(step, tf.float32))

    with tss.SparseStrategy().scope():
        ids = keras.Input([3], dtype="int32")
        rows = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(ids))
        last = keras.layers.Dense(1, name="last")
        model = keras.Model(ids, last(keras.layers.LayerNormalization()(rows)))
        schedule = Halving()
        adam = keras.optimizers.AdamW(schedule, weight_decay=0.1, clipnorm=1.0)
        adam.exclude_from_weight_decay(var_list=[last.kernel], var_names=["gamma"])
        optimizer = wrap(adam)
        model.compile(optimizer, "mse")
        converted = tss.shard_embeddings(model, min_rows=1000)
    copy = getattr(converted.optimizer, "inner_optimizer", converted.optimizer)
    assert type(converted.optimizer) is type(optimizer) and copy is not adam
    assert copy._learning_rate is schedule and copy.clipnorm == 1.0
    decayed = {v.path for v in converted.trainable_variables if copy._use_weight_decay(v)}
    assert decayed == {v.path for v in model.trainable_variables if adam._use_weight_decay(v)}
    assert "last/kernel" not in decayed and "last/bias" in decayed


@pytest.mark.parametrize("layer", ["embedding", "normalization"])
def test_weights_that_a_model_has_before_it_is_built(layer):
    """A copy would draw others."""
    with tss.SparseStrategy().scope():
        if layer == "embedding":
            layers = [keras.layers.Embedding(50, 4, weights=np.ones([50, 4])), keras.layers.Flatten()]
        else:
            layers = [keras.layers.Normalization()]
            layers[0].adapt(np.array([[1.0], [3.0]]))
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="has weights already, and its model has not been built"):
            tss.shard_embeddings(model, placement="columns")
        model(tf.constant([[1]]))
        tss.shard_embeddings(model, placement="columns")


def test_several_optimizers_of_which_one_has_two_places():
    with tss.SparseStrategy().scope():
        model = model_of_embeddings()
        adam = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9))
        twice = {"large/.*": adam, "small/.*": adam}
        choice = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.2), twice)
        model.compile(keras.optimizers.MultiOptimizer(choice), "mse")
        copy = tss.shard_embeddings(model, min_rows=1000).optimizer
    kinds = [type(optimizer).__name__ for optimizer in copy.optimizers]
    assert kinds == ["Adam", "SGD"] and adam not in copy.optimizers
    assert copy.optimizers[0]._learning_rate is adam._learning_rate
    by_path = {v.path: copy._optimizer_map(v) for v in model.trainable_variables}
    assert by_path["large/embeddings"] is by_path["small/embeddings"] is copy.optimizers[0]
    assert by_path["rows/embeddings"] is copy.optimizers[1]


def test_a_function_for_a_rate_is_kept():
    with tss.SparseStrategy().scope():
        model = model_of_embeddings()
        model.compile(keras.optimizers.SGD(lambda: 0.25), "mse")
        assert float(tss.shard_embeddings(model, min_rows=10).optimizer.learning_rate) == 0.25


def test_inputs_within_lists_and_dicts():
    """As Keras hands them over when it copies a model."""
    with tss.SparseStrategy().scope():
        ids, more = keras.Input([3], dtype="int32"), {n: keras.Input([1], name=n) for n in "ab"}
        rows = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(ids))
        model = keras.Model([ids, more], keras.layers.Concatenate()([rows, *more.values()]))
        converted = tss.shard_embeddings(model, placement="columns")
        inputs = [tf.constant([[1, 2, 3]]), {n: tf.constant([[float(i)]]) for i, n in enumerate("ab")}]
        np.testing.assert_array_equal(converted(inputs), model(inputs))
