"""ShardedEmbedding in one process, with and without a strategy: an Embedding, and what it adds."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.optimizers import LazyAdam

L, D = 7, 4
TABLE = np.random.default_rng(0).normal(size=(L, D)).astype("float32")


@pytest.fixture(params=["alone", "strategy"])
def scope(request):
    """Without a strategy, and under one of one worker."""
    strategy = tss.SparseStrategy() if request.param == "strategy" else tf.distribute.get_strategy()
    with strategy.scope():
        yield request.param


def layers(**kwargs):
    """(keras.layers.Embedding, ShardedEmbedding) with the same table."""
    kinds = keras.layers.Embedding, tss.layers.ShardedEmbedding
    return [kind(L, D, weights=TABLE, **kwargs) for kind in kinds]


IDS = (
    np.array([[1, 2, 2], [0, 6, 1]]),
    np.array([[1.0, 2.0]], "float32"),
    np.array([], "int64"),
    np.array([-1, 3, -7]),  # TensorFlow's own Embedding refuses these on CPUs
)
MANY = 40_000  # rows, which int8 and int16 cannot count


@pytest.mark.parametrize("ids", IDS[:3], ids=str)
def test_it_is_an_embedding(scope, ids):
    plain, sharded = layers(mask_zero=True)
    np.testing.assert_array_equal(sharded(ids), plain(ids))
    np.testing.assert_array_equal(sharded.compute_mask(ids), plain.compute_mask(ids))
    assert sharded.compute_output_shape(ids.shape) == plain.compute_output_shape(ids.shape)
    assert sharded.count_params() == plain.count_params() == L * D


@pytest.mark.parametrize("together", [False, True])
def test_ids_in_a_variable(scope, together):
    """Keras 3's, which it hands on as it is; positions, for example."""
    layer = layers()[1]
    ids = keras.Variable(np.array([3, 0, 3]), trainable=False, dtype="int32")
    [rows] = tss.layers.lookup_together([layer], [ids]) if together else [layer(ids)]
    np.testing.assert_array_equal(rows, TABLE[[3, 0, 3]])


def test_negative_ids_count_from_the_end(scope):
    np.testing.assert_array_equal(layers()[1](IDS[3]), TABLE[IDS[3]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("out_of_range", ["error", "clip"])
def test_ids_of_all_types(scope, dtype, out_of_range):
    """The extremes of each type that are rows, of a table with more rows than the narrow ones can count."""
    table = np.arange(MANY, dtype="float32")[:, None]
    layer = tss.layers.ShardedEmbedding(MANY, 1, weights=table, ids_out_of_range=out_of_range)
    limits = np.iinfo(dtype)
    ids = np.array([max(limits.min, -MANY), 0, 1, min(limits.max, MANY - 1)], dtype)
    np.testing.assert_array_equal(layer(ids), table[ids.astype(object).astype(int)])


def test_gradients_of_repeated_ids_are_added_up(scope):
    """Also of -1 and 6, which are the same row."""
    sharded = layers()[1]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(sharded(np.array([1, 6, 1, -1, 1])) * tf.constant([1.0, 2, 3, 4, 5])[:, None])
    table = sharded.trainable_variables[0]
    held = slices.of(table)
    gradient = tape.gradient(loss, table.value if held is None else held.values[0])
    assert sorted(gradient.indices.numpy().tolist()) == [1, 6]
    dense = np.zeros((L, D))
    dense[[1, 6]] = [[9.0], [6.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), dense)


@pytest.mark.parametrize("wrong, named", [([2, 7], "7"), ([2, -8], "-8"), ([1 << 40], str(1 << 40))])
def test_ids_out_of_range(scope, wrong, named):
    ids, found = np.array(wrong), rf"'words' has rows 0 to 6(.|\n)*{named}(.|\n)*on rank"
    with pytest.raises(tf.errors.InvalidArgumentError, match=found):
        layers(name="words")[1](ids)
    clip = tss.layers.ShardedEmbedding(L, D, weights=TABLE, ids_out_of_range="clip")
    np.testing.assert_array_equal(clip(ids), TABLE[np.clip(np.where(ids < 0, ids + L, ids), 0, L - 1)])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_combiners_of_all_kinds_of_inputs(scope, combiner, weighted):
    """The same ids ragged, sparse, and dense with weight 0 where there is none."""
    layer = tss.layers.ShardedEmbedding(L, D, weights=TABLE, combiner=combiner)
    lists, factors = [[1, 2, 2], [], [6]], [[0.5, 1.0, 2.0], [], [3.0]]
    ids = tf.ragged.constant(lists, dtype=tf.int32)
    weights = tf.ragged.constant(factors) if weighted else None
    sparse_ids, sparse_weights = ids.to_sparse(), tf.ragged.constant(factors).to_sparse()
    expected = tf.nn.embedding_lookup_sparse(
        TABLE, sparse_ids, sparse_weights if weighted else None, combiner=combiner
    )
    # TensorFlow's result ends with the last row that has ids.
    np.testing.assert_allclose(layer(ids, weights=weights), expected, rtol=1e-6)
    got = layer(sparse_ids, weights=sparse_weights if weighted else None)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    mask = tf.cast(tf.sequence_mask(ids.row_lengths()), tf.float32)
    dense_weights = weights.to_tensor() if weighted else mask
    np.testing.assert_allclose(layer(ids.to_tensor(), weights=dense_weights), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "kind, weights",
    [
        ("ragged", [[1.0], [2.0, 3.0]]),
        ("sparse", [[1.0], [2.0, 3.0]]),
        ("ragged", [[1.0, 2.0], [3.0], []]),
    ],
)
def test_weights_in_other_places_are_refused(scope, kind, weights):
    """As many as ids, but in other rows; or of other rows."""
    layer = tss.layers.ShardedEmbedding(L, D, weights=TABLE, combiner="sum")
    ids, weights = tf.ragged.constant([[1, 2], [3]], dtype=tf.int32), tf.ragged.constant(weights)
    if kind == "sparse":
        ids, weights = ids.to_sparse(), weights.to_sparse()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in the places of the ids"):
        layer(ids, weights=weights)


def test_ragged_ids_of_several_dimensions(scope):
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([[1, 2], [3, 3], [0, 6]]), [2, 0, 1])
    rows = layers()[1](ids)
    assert rows.shape.as_list() == [3, None, 2, D]
    np.testing.assert_array_equal(rows.flat_values, TABLE[[[1, 2], [3, 3], [0, 6]]])


@pytest.mark.parametrize("too_large", [2**63, 2**64 - 1])
def test_ids_beyond_int64_are_not_negative(scope, too_large):
    ids = tf.constant([1, too_large], tf.uint64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has rows 0 to 6"):
        layers()[1](ids)
    clip = tss.layers.ShardedEmbedding(L, D, weights=TABLE, ids_out_of_range="clip")
    np.testing.assert_array_equal(clip(ids), TABLE[[1, L - 1]])


def test_ragged_ids_stay_ragged(scope):
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int32)
    rows = layers()[1](ids)
    assert rows.row_lengths().numpy().tolist() == [2, 0, 1]
    np.testing.assert_array_equal(rows.flat_values, TABLE[[1, 2, 3]])


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"combiner": "max"}, "combiner='max' is not one of"),
        ({"wire_dtype": "int8"}, "wire_dtype='int8'"),
        ({"ids_out_of_range": "wrap"}, "ids_out_of_range='wrap'"),
        ({"combiner": "sum", "mask_zero": True}, "no ids are left to be masked"),
    ],
)
def test_wrong_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        tss.layers.ShardedEmbedding(L, D, **arguments)


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"embeddings_constraint": keras.constraints.MaxNorm(axis=1)}, "needs whole rows"),
        ({"embeddings_regularizer": keras.regularizers.OrthogonalRegularizer()}, "not known"),
        ({"lora_rank": 2}, "lora_rank"),
    ],
)
def test_what_slices_cannot_have(arguments, match):
    with tss.SparseStrategy().scope(), pytest.raises(ValueError, match=match):
        tss.layers.ShardedEmbedding(L, D, **arguments).build()


def test_adapted_by_lora_it_is_an_embedding():
    """Without a strategy: what is looked up has the adapter in it, which alone is trained."""
    rng = np.random.default_rng(1)
    adapters = [rng.normal(size=shape).astype("float32") for shape in ((L, 2), (2, D))]
    outputs, gradients = [], []
    for layer in layers():
        layer.enable_lora(2, lora_alpha=3)
        layer.lora_embeddings_a.assign(adapters[0])
        layer.lora_embeddings_b.assign(adapters[1])
        with tf.GradientTape() as tape:
            outputs.append(layer(tf.constant([[1, 2, 2]])))
            loss = tf.reduce_sum(outputs[-1] ** 2)
        gradients.append(tape.gradient(loss, [v.value for v in layer.trainable_variables]))
    assert len(gradients[1]) == 2 and not np.allclose(outputs[1], TABLE[[1, 2, 2]])
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6)
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), tf.convert_to_tensor(theirs), rtol=1e-5)


def test_quantization_is_refused():
    _, sharded = layers()
    with pytest.raises(NotImplementedError, match="quantization needs the whole matrix"):
        sharded.quantize("int8")
    with pytest.raises(ValueError, match="quantization needs the whole matrix"):
        tss.layers.ShardedEmbedding(L, D, dtype="int8_from_float32").build()


def test_weights_without_a_combiner():
    with pytest.raises(ValueError, match="pass combiner='sum'"):
        layers()[1](np.array([1]), weights=np.array([1.0]))


def test_configuration():
    """Only what differs from Embedding is said, so that Embedding takes the rest."""
    plain, sharded = layers(mask_zero=True, name="words")
    assert sharded.get_config() == plain.get_config()
    other = tss.layers.ShardedEmbedding(L, D, combiner="mean", wire_dtype="bfloat16")
    again = keras.layers.deserialize(keras.layers.serialize(other))
    assert type(again) is tss.layers.ShardedEmbedding
    assert again.get_config() == other.get_config()


def test_a_loss_scale_factor_is_refused():
    with tss.SparseStrategy().scope():
        ids = keras.Input([3], dtype="int32")
        model = keras.Model(ids, tss.layers.ShardedEmbedding(50, 6)(ids))
        with pytest.raises(ValueError, match=r"Adam\(loss_scale_factor=128.0\).*LossScaleOptimizer"):
            model.compile(keras.optimizers.Adam(loss_scale_factor=128.0), "mse")
            model.fit(np.ones([4, 3], np.int32), np.ones([4, 3, 6]), verbose=0)


def test_lookup_together_is_each_by_itself(scope):
    """Masks included; of lists, too."""
    alone, masked = layers(name="alone", trainable=False)[1], layers(mask_zero=True)[1]
    ids = [[[1, 0], [2, 2]], tf.constant([[0, 3]])]
    found = tss.layers.lookup_together([alone, masked], ids)
    for layer, i, rows in zip([alone, masked], ids, found, strict=True):
        expected = layer(tf.constant(i))
        np.testing.assert_array_equal(rows, expected)
        mask, of_layer = (getattr(x, "_keras_mask", None) for x in (rows, expected))
        assert (mask is None) is (of_layer is None) is (layer is alone)
        if mask is not None:
            np.testing.assert_array_equal(mask, of_layer)


def test_lookup_together_calls_no_layer():
    layer = tss.layers.ShardedEmbedding(L, D, activity_regularizer="l2")
    with pytest.raises(ValueError, match="has an activity_regularizer or a call of its own; call it by"):
        tss.layers.lookup_together([layer], [tf.constant([1])])


def test_stateless_calls_use_the_table_they_are_given():
    for layer in layers():
        layer.build([None])
        given = tf.Variable(TABLE + 1)
        with tf.GradientTape() as tape:
            rows, _ = layer.stateless_call([given], [], tf.constant([2]))
        np.testing.assert_array_equal(rows, TABLE[2:3] + 1)
        assert tape.gradient(rows, given) is not None


DRAWING_ON_ONE_OF_TWO_DEVICES = """
import tensorflow as tf
import tf_sparse_strategy as tss
from tf_sparse_strategy import devices

devices.pin = lambda: "CPU:1"  # as if it were a GPU
[host], two = tf.config.list_physical_devices("CPU"), [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(host, two)

def draw(shape, dtype):
    table = tf.zeros(shape, dtype)
    print("drawn on", table.device)
    return table

with tss.SparseStrategy().scope():
    layer = tss.layers.ShardedEmbedding(7, 5, embeddings_initializer=draw)
    layer.build()
print("held on", layer.trainable_variables[0].value.device)
"""


def test_the_table_is_drawn_on_the_host():
    """Whatever device its columns are on: a GPU may not hold all of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    command = [sys.executable, "-c", DRAWING_ON_ONE_OF_TWO_DEVICES]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    place = "/job:localhost/replica:0/task:0/device:CPU:"
    assert f"drawn on {place}0\nheld on {place}1\n" in result.stdout, result.stderr


def test_keras_does_not_hand_it_to_xla():
    """There, LazyAdam would write the rows that pad the distinct ids."""
    ids = keras.Input([3], dtype="int32")
    model = keras.Model(ids, keras.layers.Flatten()(tss.layers.ShardedEmbedding(L, D)(ids)))
    with pytest.warns(UserWarning, match="jit_compile=False"):
        model.compile(LazyAdam(0.1), loss="mse", jit_compile=True)
    assert not model.jit_compile


def test_another_process_loads_what_names_our_classes(tmp_path):
    """A strategy is enough there: nobody has to know which module registers them."""
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input([2], dtype="int32"), tss.layers.ShardedEmbedding(5, 3)])
    model.compile(LazyAdam(0.1), "mse")
    model.fit(np.ones([1, 2], "int32"), np.zeros([1, 2, 3]), verbose=0)
    model.save(path)
    program = (
        "import sys, keras, tf_sparse_strategy as tss\n"
        "tss.SparseStrategy()\n"
        "print(type(keras.models.load_model(sys.argv[1]).optimizer).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=300
    )
    assert found.stdout.split()[-1:] == ["LazyAdam"], found.stderr


@pytest.mark.usefixtures("scope")
def test_what_repeats_is_added_up_before_it_is_rounded():
    """As by several workers: of one lookup's part float16 has nothing."""
    layer = tss.layers.ShardedEmbedding(L, D, wire_dtype="float16")
    layer.build()

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.zeros([4096], tf.int32))) * 2.0**-30
        return tf.convert_to_tensor(tape.gradient(loss, slices.local(layer.trainable_variables[0])))

    expected = np.zeros([L, D])
    expected[0] = 2.0**-18
    np.testing.assert_array_equal(gradient(), expected)
