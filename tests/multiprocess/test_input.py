"""Datasets under real workers: every row once, in rank order, and nobody waits for ever."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.oracle import assert_identical

Policy = tf.data.experimental.AutoShardPolicy


def distributed(strategy, dataset, policy=None):
    if policy is not None:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        dataset = dataset.with_options(options)
    return strategy.experimental_distribute_dataset(dataset)


def local_batches(strategy, dataset) -> list[np.ndarray]:
    return [strategy.experimental_local_results(batch)[0].numpy() for batch in dataset]


def everyones(comm, rows) -> list:
    """All workers' rows, in rank order."""
    rows = np.concatenate(rows) if rows else np.zeros(0, "int64")
    return comm.all_gather(tf.constant(rows.astype("int64"))).numpy().tolist()


@pytest.fixture
def write(comm, topology, shared_tmp):
    """Writes files of the given numbers of rows, numbered through; returns a dataset, in batches or not."""

    def dataset(kind, sizes, batch):
        first = np.concatenate([[0], np.cumsum(sizes)])
        paths = [str(shared_tmp / f"{kind}_{len(sizes)}_{i}") for i in range(len(sizes))]
        if topology.rank == 0:
            for path, start, size in zip(paths, first, sizes, strict=False):
                lines = [str(row) for row in range(start, start + size)]
                if kind == "text":
                    open(path, "w").write("".join(line + "\n" for line in lines))
                else:
                    with tf.io.TFRecordWriter(path) as writer:
                        for line in lines:
                            writer.write(line.encode())
        comm.barrier()
        reader = tf.data.TextLineDataset if kind == "text" else tf.data.TFRecordDataset
        rows = reader(paths).map(lambda x: tf.strings.to_number(x, tf.int64))
        return rows.batch(batch) if batch else rows

    return dataset


@pytest.mark.parametrize("more", [0, 1])
def test_shares_that_differ_are_told(strategy, topology, caplog, more):
    """Of a dataset that a loop reads, whose rows nobody weighs."""
    for _ in range(2):
        distributed(strategy, tf.data.Dataset.range(20).batch(2 * topology.num_workers + more))
    told = sum("cannot share alike" in record.getMessage() for record in caplog.records)
    assert told == (more > 0 and topology.rank == 0 and topology.num_workers > 1)


@pytest.mark.parametrize("rows, batch", [(14, 7), (17, 9), (20, 8)])
def test_global_batches_in_rank_order(comm, strategy, topology, rows, batch):
    mine = local_batches(strategy, distributed(strategy, tf.data.Dataset.range(rows).batch(batch)))
    for step, first in enumerate(range(0, rows, batch)):
        whole = list(range(first, min(first + batch, rows)))
        if len(whole) < topology.num_workers:
            assert len(mine) == step  # dropped by all: not a row for each worker
            break
        assert everyones(comm, mine[step : step + 1]) == whole
        assert len(mine[step]) - len(whole) // topology.num_workers in (0, 1)


@pytest.mark.parametrize("rows", [1, 5])
def test_predict_few_rows(strategy, keras, rows):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
    x = np.arange(rows, dtype="float32")[:, np.newaxis] + 1
    np.testing.assert_array_equal(model.predict(x, batch_size=4, verbose=0), 2 * x)


@pytest.mark.parametrize("kind", ["text", "tfrecord"])
@pytest.mark.parametrize("policy", [None, Policy.AUTO, Policy.FILE, Policy.DATA], ids=str)
def test_files_enough_for_all(comm, strategy, topology, write, kind, policy):
    workers = topology.num_workers
    data = distributed(strategy, write(kind, [4] * workers, batch=2 * workers), policy)
    mine = local_batches(strategy, data)
    if policy == Policy.DATA:
        assert everyones(comm, mine[:1]) == list(range(2 * workers))
    else:
        own = 4 * topology.rank + np.arange(4)
        np.testing.assert_array_equal(np.concatenate(mine), own)
    assert sorted(everyones(comm, mine)) == list(range(4 * workers))


@pytest.mark.parametrize("sizes", ["fewer", "one_empty"])
def test_files_too_few(comm, strategy, topology, write, sizes):
    """AUTO shares out rows; FILE, which cannot, says so on every worker."""
    workers = topology.num_workers
    if workers == 1:
        pytest.skip("one worker takes all files")
    sizes = [4 * workers] * (workers - 1) + ([] if sizes == "fewer" else [0])
    data = write("tfrecord", sizes, batch=2 * workers)
    mine = local_batches(strategy, distributed(strategy, data))
    assert sorted(everyones(comm, mine)) == list(range(sum(sizes)))
    with pytest.raises(ValueError, match="auto_shard_policy=FILE.*AutoShardPolicy.DATA"):
        distributed(strategy, data, Policy.FILE)


@pytest.mark.parametrize("how", ["beside rows in memory", "until a row is met"])
def test_files_that_cannot_be_shared_out(comm, strategy, topology, write, how):
    """Left to itself TensorFlow would share out batches, and of some pipelines the files before that."""
    workers, rows = topology.num_workers, write("tfrecord", [8] * topology.num_workers, None)
    data = {
        "beside rows in memory": lambda: rows.concatenate(tf.data.Dataset.range(8 * workers, 10 * workers)),
        "until a row is met": lambda: rows.take_while(lambda x: x < 6 * workers),
    }[how]()
    mine = local_batches(strategy, distributed(strategy, data.batch(2 * workers)))
    total = {"beside rows in memory": 10, "until a row is met": 6}[how] * workers
    assert sorted(everyones(comm, mine)) == list(range(total))
    assert everyones(comm, mine[:1]) == list(range(2 * workers))


def test_a_part_with_too_few_files(comm, strategy, topology, write):
    """Of two that follow each other: it is met when the job begins, not when the part does."""
    workers = topology.num_workers
    data = write("text", [4] * workers, None).concatenate(write("tfrecord", [workers], None))
    mine = local_batches(strategy, distributed(strategy, data.batch(2 * workers)))
    assert sorted(everyones(comm, mine)) == sorted([*range(4 * workers), *range(workers)])


def test_names_of_files_may_be_repeated(comm, strategy, topology, write, shared_tmp):
    """Their shuffle is none of rows."""
    workers = topology.num_workers
    write("tfrecord", [4] * workers, None)
    names = tf.data.Dataset.list_files(str(shared_tmp / f"tfrecord_{workers}_*"), seed=1).repeat(2)
    data = names.interleave(tf.data.TFRecordDataset).map(lambda x: tf.strings.to_number(x, tf.int64))
    mine = local_batches(strategy, distributed(strategy, data.batch(2 * workers), Policy.FILE))
    assert sorted(everyones(comm, mine)) == sorted([*range(4 * workers)] * 2)


@pytest.mark.parametrize("dropped", [0, 5])
def test_files_that_make_no_batch_on_some_worker(comm, strategy, topology, write, dropped):
    """None of a worker's is full, or all rows of one are filtered out: rows are shared out."""
    workers = topology.num_workers
    data = write("tfrecord", [5] * workers, None).filter(lambda row: row >= dropped)
    data = data.batch(5 * workers, drop_remainder=dropped == 0)
    mine = local_batches(strategy, distributed(strategy, data))
    assert sorted(everyones(comm, mine)) == list(range(dropped, 5 * workers))


def test_looking_for_files_leaves_shuffles_where_they_are(comm, strategy, topology, write):
    """A `repeat` that finds none would begin as often as it repeats, on some workers only."""
    tf.random.set_seed(5)
    data = write("tfrecord", [6 * topology.num_workers], None).shuffle(100).batch(3 * topology.num_workers)
    mine = local_batches(strategy, distributed(strategy, data.repeat(4)))
    for epoch in range(4):
        rows = everyones(comm, mine[2 * epoch : 2 * epoch + 2])
        assert sorted(rows) == list(range(6 * topology.num_workers))


@pytest.mark.parametrize("epochs", [1, 2])
def test_batches_padded_to_their_own_length(comm, strategy, topology, write, epochs):
    """Rows of two of them cannot be joined."""

    def padded(x):
        return tf.RaggedTensor.from_row_lengths(tf.repeat(x, x % 3 + x // 7), x % 3 + x // 7).to_tensor(-1)

    sizes = [13] * topology.num_workers
    dataset = write("tfrecord", sizes, 7).map(lambda x: padded(x + 1))
    mine = local_batches(strategy, distributed(strategy, dataset.repeat(epochs) if epochs > 1 else dataset))
    first = [batch.max(axis=1) for batch in mine]
    assert sorted(x for x in everyones(comm, first) if x > 0) == sorted(
        [x for x in range(1, sum(sizes) + 1) if x % 3 + x // 7] * epochs
    )


def test_uneven_files_end_together(comm, strategy, topology, write):
    """In a user's loop: with the first worker that has no more."""
    workers = topology.num_workers
    data = write("text", [2 * (r + 2) for r in range(workers)], batch=2 * workers)
    steps = len(local_batches(strategy, distributed(strategy, data)))
    assert steps == 2
    assert_identical(comm, steps)


def mean_of_rows(strategy, keras):
    """A model whose loss is the mean of its input rows, at learning rate 0."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.ones((1, 1))])
        model.compile(keras.optimizers.SGD(0.0), loss="mae")
    return model


def as_rows(x):
    x = tf.cast(x, tf.float32)[:, tf.newaxis]
    return x, tf.zeros_like(x)


def test_uneven_files_count_every_row_in_keras(comm, strategy, topology, keras, write):
    sizes = [3 * r + 2 for r in range(topology.num_workers)]
    data = write("tfrecord", sizes, batch=2 * topology.num_workers).map(as_rows)
    model = mean_of_rows(strategy, keras)
    expected = np.mean(np.arange(sum(sizes)))
    loss = model.fit(data, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose([*loss, model.evaluate(data, verbose=0)], expected, rtol=1e-6)


@pytest.mark.parametrize("first", ["by rows", "narrow"])
def test_functions_are_traced_for_how_data_ends(strategy, topology, keras, write, first):
    """Not those for data that ends by itself, nor of another shape, for files that are uneven."""
    sizes = [3 * r + 2 for r in range(topology.num_workers)]
    batch, numbers = 2 * topology.num_workers, np.arange(sum(sizes), dtype="float32")
    files = write("tfrecord", sizes, batch).map(as_rows)
    wide = files.map(lambda x, y: (tf.tile(x, [1, 3]), y))
    with strategy.scope():
        inputs = keras.Input((None,))
        model = keras.Model(inputs, keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1, True))(inputs))
        model.compile(loss="mae")
    if first == "by rows":
        data = numbers[:, np.newaxis]
        before = model.evaluate(data, np.zeros_like(data), batch_size=batch, verbose=0)
    else:
        before = model.evaluate(files, verbose=0)
    found = [before, model.evaluate(files, verbose=0), model.evaluate(wide, verbose=0) / 3]
    np.testing.assert_allclose(found, [np.mean(numbers)] * 3, rtol=1e-6)


def test_a_dataset_that_a_function_is_given_ends_together_too(comm, strategy, topology, write):
    """Nobody is given a batch without rows."""
    workers = topology.num_workers
    data = write("text", [2 * (r + 2) for r in range(workers)], batch=2 * workers)

    @tf.function
    def rows(dataset):
        steps, least = tf.constant(0), tf.constant(9)
        for batch in dataset:
            [own] = strategy.experimental_local_results(batch)
            steps, least = steps + 1, tf.minimum(least, tf.size(own))
        return steps, least

    found = [int(x) for x in rows(distributed(strategy, data))]
    assert found == [2, 2]
    assert_identical(comm, found)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_function_of_the_users_masks_where_rows_do_not_count(strategy, topology, keras, run_eagerly):
    """Also where it was traced first in a step in which all rows count."""
    workers = topology.num_workers
    total = tf.function(lambda x: tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(x)))

    class Summing(keras.Sequential):
        def train_step(self, data):
            return {"total": total(data[0])}

    with strategy.scope():
        model = Summing([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(run_eagerly=run_eagerly, jit_compile=False)
    whole = tf.data.Dataset.range(workers).batch(workers, drop_remainder=True).map(as_rows)
    short = tf.data.Dataset.from_tensors([workers]).map(as_rows)  # one row, of the first worker
    for data, expected in ((whole, sum(range(workers))), (short, workers), (whole, sum(range(workers)))):
        assert model.fit(data, verbose=0).history["total"] == [expected]
    assert total.experimental_get_tracing_count() == min(workers, 2)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_infinite_with_steps_per_epoch(strategy, steps_per_execution):
    import keras

    model = mean_of_rows(strategy, keras)
    model.compile("sgd", "mae", steps_per_execution=steps_per_execution)
    data = tf.data.Dataset.range(12).batch(5).repeat().map(as_rows)
    model.fit(data, steps_per_epoch=4, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 8


def test_own_data_of_each_worker(comm, strategy, topology):
    """OFF: a worker's dataset is its own, in batches of its share."""
    start = 100 * topology.rank
    own = tf.data.Dataset.range(start, start + 6).batch(2 * topology.num_workers)
    mine = local_batches(strategy, distributed(strategy, own, Policy.OFF))
    assert np.concatenate(mine).tolist() == list(range(start, start + 6))
    if topology.num_workers > 1:
        assert {len(batch) for batch in mine} == {2}


def test_own_data_of_each_worker_in_keras(strategy, topology, keras):
    """All of it in each epoch (tf_keras ends with steps of one's own), and predicted."""
    start, workers = 100 * topology.rank, topology.num_workers
    rows, options = tf.data.Dataset.range(start, start + 4 * workers), tf.data.Options()
    own = rows.batch(2 * workers).map(as_rows)
    options.experimental_distribute.auto_shard_policy = Policy.OFF
    own = own.with_options(options)
    model = mean_of_rows(strategy, keras)
    everything = np.add.outer(100 * np.arange(workers), np.arange(4 * workers)).ravel()
    steps = {} if keras.__name__ == "tf_keras" else {"steps_per_epoch": 2 * workers}
    loss = model.fit(own, epochs=3, verbose=0, **steps).history["loss"]
    np.testing.assert_allclose(loss, everything.mean(), rtol=1e-6)
    predicted = model.predict(own.map(lambda x, y: x), verbose=0)
    assert sorted(predicted.ravel().tolist()) == everything.tolist()


def test_datasets_from_function_end_together(comm, strategy, topology):
    def make(context):
        return tf.data.Dataset.range(3 + context.input_pipeline_id).batch(1)

    dataset = strategy.distribute_datasets_from_function(make)
    assert len(local_batches(strategy, dataset)) == 3

    @tf.function
    def count():
        steps = 0
        for _ in dataset:
            steps += 1
        return steps

    assert int(count()) == 3


def test_unbatched_is_refused(strategy, keras):
    with pytest.raises(ValueError, match=r"not batched.*dataset.batch\(global_batch_size\)"):
        distributed(strategy, tf.data.Dataset.range(4))


def test_too_small_batch_is_refused(strategy, topology):
    if topology.num_workers == 1:
        pytest.skip("one row is enough for one worker")
    data = tf.data.Dataset.range(8).batch(1, drop_remainder=True)
    with pytest.raises(ValueError, match="1 rows for .* workers.*batch size"):
        distributed(strategy, data)


def test_ragged_and_sparse(comm, strategy, topology):
    lengths, rows = [1, 3, 0, 2, 4, 1], 6
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(11), lengths)
    sparse = tf.sparse.from_dense(np.diag(np.arange(1, 7)))
    data = tf.data.Dataset.from_tensor_slices({"ragged": ragged, "sparse": sparse}).batch(rows)
    (batch,) = distributed(strategy, data)

    def row_sums(element):
        return tf.stack(
            [
                tf.reduce_sum(element["ragged"], axis=1),
                tf.sparse.reduce_sum(element["sparse"], axis=1),
            ],
            axis=1,
        )

    gathered = strategy.gather(strategy.run(row_sums, args=(batch,)), axis=0)
    expected = np.stack([tf.reduce_sum(ragged, axis=1), np.arange(1, 7)], axis=1)
    np.testing.assert_array_equal(gathered, expected)


def test_shuffle_without_a_seed(comm, strategy):
    """Each epoch every row once over all workers, in an order of its own."""
    data = distributed(strategy, tf.data.Dataset.range(24).shuffle(24).batch(8))
    epochs = [everyones(comm, local_batches(strategy, data)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(24))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("name", ["", "cache"], ids=["memory", "file"])
def test_rows_in_a_cache_are_not_shared_out_by_files(comm, strategy, topology, shared_tmp, tmp_path, name):
    """It may hold those of all, and gives them whoever reads."""
    paths = [shared_tmp / str(number) for number in range(topology.num_workers)]
    if topology.rank == 0:
        for path in paths:
            path.write_text("1\n2\n")
    comm.barrier()
    lines = tf.data.TextLineDataset([str(path) for path in paths]).map(tf.strings.to_number)
    data = lines.cache(name and str(tmp_path / name)).batch(2 * topology.num_workers)
    assert len(list(data)) == 1  # now it is complete
    distributed = strategy.experimental_distribute_dataset(data)
    count = sum(int(tf.size(strategy.experimental_local_results(x)[0])) for x in distributed)
    assert int(comm.all_reduce(tf.constant(count))) == 2 * topology.num_workers
