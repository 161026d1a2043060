"""`tf.train.Checkpoint` of divided tables: no worker holds a whole one; any process reads it; failures."""

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess.divided_tables import MARGIN, ROWS, WIDTH, one_table, own_bytes, rise
from tests.multiprocess.embedding_models import compiled
from tf_sparse_strategy.embedding import checkpoints, slices, wholes


def of(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@pytest.fixture
def many_parts(monkeypatch):
    """A few rows in each shard, and a few of those on their way at a time."""
    monkeypatch.setattr(checkpoints, "_SLICE", 64)
    monkeypatch.setattr(checkpoints, "_FILES", 13)
    monkeypatch.setattr(wholes, "CHUNK", 5)


def changed(model, by):
    model.set_weights([w + by for w in model.get_weights()])
    return model.get_weights()


def test_no_worker_holds_a_whole_table(partners, comm, strategy, shared_tmp, monkeypatch):
    """While it is written, nor while it is read, which takes a worker's columns once more."""
    whole, prefix = 4 * ROWS * WIDTH, str(shared_tmp / "m")
    model = one_table(strategy, ROWS, WIDTH, momentum=0.9)
    file = max(checkpoints._SLICE, whole // strategy.num_replicas_in_sync // checkpoints._FILES)
    assert rise(lambda: of(model).write(prefix)) < MARGIN + 2 * file
    of(model).read(prefix)  # the first also frees what the variables began with
    assert rise(lambda: of(model).read(prefix)) < 2 * own_bytes(model) + MARGIN  # table and slot
    monkeypatch.setattr(checkpoints, "_SLICE", 1 << 40)
    assert rise(lambda: of(model).write(prefix)) > whole or comm.topology.rank, "the measure tells"
    comm.barrier()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_in_parts(comm, topology, strategy, shared_tmp, many_parts, dtype):
    model, other = (one_table(strategy, dtype=dtype, momentum=0.9) for _ in range(2))
    expected, prefix = changed(model, 1), str(shared_tmp / "m")
    assert not np.array_equal(other.get_weights()[0], expected[0])
    of(model).write(prefix)
    of(other).read(prefix).assert_consumed()
    np.testing.assert_array_equal(other.get_weights()[0], expected[0])
    if topology.rank == 0:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        read = [reader.get_tensor(key) for key, shape in shapes.items() if shape == [13, 5]]
        assert sorted(value.any() for value in read) == [False, True]  # the slot, and the table
        np.testing.assert_array_equal(sum(read), expected[0])
    comm.barrier()
    in_parts = topology.num_workers > 1 and dtype != "float16"
    assert (len(list(shared_tmp.glob("m.data-*"))) > 3) == in_parts


def test_what_one_process_wrote(comm, topology, strategy, shared_tmp):
    prefix, expected = str(shared_tmp / "plain"), np.arange(65, dtype="float32").reshape(13, 5)
    if topology.rank == 0:
        inputs = keras.Input((3,), dtype="int32")
        plain = keras.Model(inputs, keras.layers.Embedding(13, 5)(inputs))
        plain.compile(keras.optimizers.SGD(momentum=0.9))
        plain.optimizer.build(plain.trainable_variables)
        plain.set_weights([expected])
        of(plain).write(prefix)
    comm.barrier()
    model = one_table(strategy, momentum=0.9)
    of(model).read(prefix).assert_consumed()
    np.testing.assert_array_equal(model.get_weights()[0], expected)


def test_the_users_shards(strategy, shared_tmp, many_parts):
    """Tables in parts, and the other variables as the user wants them."""
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=40)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    with strategy.scope():
        model = compiled(tss.layers.ShardedEmbedding)
    expected, prefix = changed(model, 1), str(shared_tmp / "m")
    of(model).write(prefix, options)
    assert options.experimental_sharding_callback is policy, "options are the user's"
    changed(model, 1)
    of(model).read(prefix)
    for value, saved in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(value, saved)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [4, 6])
def test_another_shape_is_refused(strategy, shared_tmp, dtype, width):
    prefix = str(shared_tmp / "other")
    of(one_table(strategy, width=width, dtype=dtype)).write(prefix)
    model = one_table(strategy, dtype=dtype)
    before = model.get_weights()[0]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=rf"13, ?5.*13, ?{width}"):
        of(model).read(prefix)
    np.testing.assert_array_equal(model.get_weights()[0], before)


def test_what_reads_a_table_while_it_is_written(strategy, shared_tmp, many_parts):
    """All workers do, before the first asks for parts."""
    model = one_table(strategy)

    class Copy(tf.train.experimental.PythonState):
        def serialize(self):
            return model.get_weights()[0].tobytes()

        def deserialize(self, string_value):
            self.read = np.frombuffer(string_value, "float32")

    copy, prefix = Copy(), str(shared_tmp / "m")
    tf.train.Checkpoint(model=model, copy=copy).write(prefix)
    tf.train.Checkpoint(model=model, copy=copy).read(prefix)
    np.testing.assert_array_equal(copy.read, model.get_weights()[0].ravel())


def test_tables_of_two_strategies_are_refused(partners, strategy, shared_tmp):
    models = [one_table(strategy), one_table(tss.SparseStrategy("torus2d"))]
    with pytest.raises(NotImplementedError, match="one tf.train.Checkpoint for each strategy"):
        tf.train.Checkpoint(models=models).write(str(shared_tmp / "m"))


def test_looking_for_tables_reads_nothing(strategy, comm, shared_tmp):
    """To ask a metric's variable for what it has not would add it up over the workers."""
    with strategy.scope():
        model = compiled(keras.layers.Embedding)
        total = keras.metrics.Mean()
    total.update_state(1.0)
    before = strategy.extended.collectives.traffic()[0]
    assert not any(map(slices.of, [*model.variables, *total.variables]))
    assert strategy.extended.collectives.traffic()[0] == before


def test_a_full_disk_keeps_nobody_waiting(partners, topology, strategy, shared_tmp, monkeypatch, caplog):
    """The first worker fails in the midst of the parts, and says so; the others learn that it is over."""
    model = one_table(strategy, rows=1 << 10, width=16, momentum=0.9)
    prefix, limits = str(shared_tmp / "m"), resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(checkpoints, "_SLICE", 1 << 13)
    monkeypatch.setattr(checkpoints, "_FILES", 13)
    of(model).write(prefix)
    saved = model.get_weights()[0]
    changed(model, 1)
    if topology.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
        try:
            with pytest.raises(tf.errors.OpError):
                of(model).write(prefix)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    else:
        of(model).write(prefix)
    assert ("cannot write a checkpoint" in caplog.text) == (topology.rank == 0)
    assert model.get_weights()[0].any()  # workers are in step
    of(model).read(prefix)
    np.testing.assert_array_equal(model.get_weights()[0], saved)
