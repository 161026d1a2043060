"""Variables made in scope: values from rank 0, and MultiWorkerMirroredStrategy's aggregations."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess.oracle import assert_identical
from tf_sparse_strategy import agreement

Aggregation = tf.VariableAggregation
ON_READ = tf.VariableSynchronization.ON_READ

DTYPES = [
    tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint8, tf.int16, tf.uint16,
    tf.int32, tf.uint32, tf.int64, tf.uint64, tf.bool, tf.complex64,
]  # fmt: skip


def make(strategy, initial_value, **kwargs):
    with strategy.scope():
        return tf.Variable(initial_value, **kwargs)


def collectives_of(strategy) -> int:
    """How many this worker has taken part in so far."""
    return strategy.extended.collectives.sites.traffic()[0]


def local(variable) -> np.ndarray:
    """This worker's component."""
    return variable.values[0].numpy()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_initial_value_of_rank_0(strategy, topology, dtype):
    """Whatever the other workers' values are, each dtype bit by bit."""

    def mine(rank):
        return tf.cast([rank, rank + 1, 1 - rank % 2], dtype)

    variable = make(strategy, mine(topology.rank), trainable=False)
    assert variable.dtype == dtype
    np.testing.assert_array_equal(local(variable), mine(0).numpy())


def test_initial_value_of_strings_is_left_alone(strategy, topology):
    variable = make(strategy, [f"rank {topology.rank}"], trainable=False)
    assert local(variable)[0] == f"rank {topology.rank}".encode()


@pytest.mark.parametrize("shape", [(), (0,), (2,), (5, 3), (2, 0, 4)])
def test_large_values_travel_in_pieces(strategy, topology, monkeypatch, shape):
    """Of two elements here; the last one is shorter."""
    monkeypatch.setattr(agreement, "PIECE", 8)
    calls = collectives_of(strategy)
    variable = make(strategy, tf.random.stateless_normal(shape, [1, topology.rank]))
    np.testing.assert_array_equal(local(variable), tf.random.stateless_normal(shape, [1, 0]))
    pieces = max(1, -(-np.prod(shape, dtype=int) // 2))
    assert collectives_of(strategy) - calls == (0 if topology.num_workers == 1 else pieces)


@pytest.mark.parametrize("seed", [None, "own"])
def test_random_initial_value_of_rank_0(comm, strategy, topology, seed):
    generator = np.random.default_rng(None if seed is None else topology.rank)
    variable = make(strategy, lambda: tf.constant(generator.normal(size=5), tf.float32))
    assert_identical(comm, local(variable))


@pytest.mark.parametrize("seed", [None, "own"])
def test_layers_start_alike(comm, strategy, topology, keras, seed):
    if seed is not None:
        keras.utils.set_random_seed(topology.rank)
    with strategy.scope():
        layer = keras.layers.Dense(3)
        layer.build((None, 4))
    for weight in layer.get_weights():
        assert_identical(comm, weight)


MIRRORED_ASSIGNMENTS = {
    Aggregation.SUM: lambda values: sum(values),
    Aggregation.MEAN: lambda values: sum(values) / len(values),
    Aggregation.ONLY_FIRST_REPLICA: lambda values: values[0],
}


@pytest.mark.parametrize("method, start", [("assign", 0), ("assign_add", 3), ("assign_sub", 3)])
@pytest.mark.parametrize("aggregation", list(MIRRORED_ASSIGNMENTS), ids=lambda a: a.name)
def test_mirrored_assigned_in_replica_context(strategy, topology, aggregation, method, start):
    variable = make(strategy, 3.0, aggregation=aggregation)

    @tf.function
    def step():
        strategy.run(lambda: getattr(variable, method)(10.0 + topology.rank))

    step()
    combined = MIRRORED_ASSIGNMENTS[aggregation]([10.0 + r for r in range(topology.num_workers)])
    sign = -1 if method == "assign_sub" else 1
    assert local(variable) == pytest.approx(start + sign * combined)


@pytest.mark.parametrize("method, sign", [("assign_add", 1), ("assign_sub", -1)])
def test_what_is_added_to_a_sum_of_keras_is_summed_alone(strategy, topology, method, sign):
    """Keras assigns the new value, of which the old one would be summed as well."""
    with strategy.scope():
        count = keras3.Variable(3.0, trainable=False, aggregation="sum")
    strategy.run(tf.function(lambda: getattr(count, method)(10 + topology.rank)))
    assert float(count.numpy()) == 3 + sign * sum(10 + r for r in range(topology.num_workers))


def test_mirrored_without_aggregation_keeps_what_each_worker_assigns(strategy, topology):
    """As upstream: TensorFlow's check for it needs several replicas in one process."""
    variable = make(strategy, 3.0)
    strategy.run(lambda: variable.assign(10.0 + topology.rank))
    assert local(variable) == 10.0 + topology.rank


def test_mirrored_assigned_in_cross_replica_context(strategy):
    for aggregation in [Aggregation.NONE, *MIRRORED_ASSIGNMENTS]:
        variable = make(strategy, 3.0, aggregation=aggregation)
        variable.assign(8.0)
        variable.assign_add(1.0)
        assert local(variable) == 9.0


ON_READ_READS = {
    Aggregation.SUM: lambda n: n * (n + 1) / 2,
    Aggregation.MEAN: lambda n: (n + 1) / 2,
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("aggregation", list(ON_READ_READS), ids=lambda a: a.name)
def test_on_read_combined_when_read(strategy, topology, aggregation, in_function):
    """Each worker adds its rank + 1; a replica reads its own, the world outside the combination."""
    variable = make(strategy, 0.0, synchronization=ON_READ, aggregation=aggregation)

    def step():
        return strategy.run(lambda: variable.assign_add(topology.rank + 1.0))

    (tf.function(step) if in_function else step)()
    assert local(variable) == topology.rank + 1
    assert float(strategy.run(lambda: variable.read_value())) == topology.rank + 1
    read = tf.function(variable.read_value) if in_function else variable.read_value
    assert float(read()) == pytest.approx(ON_READ_READS[aggregation](topology.num_workers))


def test_on_read_of_the_first_replica(strategy, topology):
    """As upstream: the first of the worker's own replicas."""
    first = Aggregation.ONLY_FIRST_REPLICA
    variable = make(strategy, 0.0, synchronization=ON_READ, aggregation=first)
    strategy.run(lambda: variable.assign(topology.rank + 1.0))
    assert float(variable.read_value()) == topology.rank + 1


def test_on_read_without_aggregation_is_not_read_outside_a_replica(strategy, topology):
    variable = make(strategy, 0.0, synchronization=ON_READ)
    strategy.run(lambda: variable.assign(topology.rank + 1.0))
    assert local(variable) == topology.rank + 1
    if topology.num_workers > 1:
        with pytest.raises(ValueError, match="VariableAggregation.NONE"):
            variable.read_value()


def test_on_read_assigned_in_cross_replica_context(strategy, topology):
    """A sum is shared out, so that reading it gives what was assigned; a mean is copied."""
    total = make(strategy, 0.0, synchronization=ON_READ, aggregation=Aggregation.SUM)
    total.assign(8.0)
    assert local(total) == pytest.approx(8.0 / topology.num_workers)
    assert float(total.read_value()) == pytest.approx(8.0)
    mean = make(strategy, 0.0, synchronization=ON_READ, aggregation=Aggregation.MEAN)
    mean.assign(8.0)
    assert local(mean) == 8.0
    assert float(mean.read_value()) == 8.0


def test_on_read_sums_of_integers_are_kept(strategy, topology, shared_tmp):
    """Of which TensorFlow would give each worker one part in P, rounded down."""
    total = make(strategy, 0, dtype=tf.int64, synchronization=ON_READ, aggregation=Aggregation.SUM)
    odd = 10 * topology.num_workers + 1
    total.assign(odd)
    assert int(total.read_value()) == odd
    strategy.run(lambda: total.assign_add(3))
    path = tf.train.Checkpoint(total=total).save(str(shared_tmp / "counts"))
    total.assign(0)
    tf.train.Checkpoint(total=total).restore(path)
    assert int(total.read_value()) == odd + 3 * topology.num_workers


def test_generator_has_a_stream_per_replica(comm, strategy, topology):
    """`tf.random.Generator` made in scope: replicas draw different numbers."""
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    drawn = strategy.run(lambda: generator.uniform([4]))
    everyone = comm.all_gather(drawn[tf.newaxis]).numpy()
    assert len({tuple(row) for row in everyone}) == topology.num_workers


@pytest.mark.parametrize("aggregation", ["SUM", "NONE"])
def test_what_is_summed_on_read_is_gathered_as_it_is(strategy, topology, aggregation):
    """Each worker's own, and not the sum of all by each."""
    kinds = {"synchronization": ON_READ, "aggregation": Aggregation[aggregation]}
    own = make(strategy, [0, 0], trainable=False, **kinds)
    strategy.run(lambda: own.assign([topology.rank, 1]))
    workers = topology.num_workers
    everyones = sum(([rank, 1] for rank in range(workers)), [])
    assert strategy.gather(own, axis=0).numpy().tolist() == everyones
    assert int(strategy.reduce("SUM", own, axis=0)) == sum(everyones)


@pytest.mark.parametrize("aggregation", ["ONLY_FIRST_REPLICA", "MEAN"])
def test_numpy_s_values_are_assigned_in_the_variables_dtype(strategy, aggregation):
    held = make(strategy, [0.0, 0.0], aggregation=Aggregation[aggregation], trainable=False)
    strategy.run(lambda: held.assign(np.array([0.5, 2.0])))
    assert held.numpy().tolist() == [0.5, 2.0]


def test_slices_of_the_first_worker(comm, strategy, topology):
    held = make(strategy, [0.0, 0.0, 0.0], aggregation=Aggregation.ONLY_FIRST_REPLICA)
    given = tf.IndexedSlices([5.0] * (topology.rank + 1), [topology.rank % 3] * (topology.rank + 1))
    for run in (strategy.run, tf.function(strategy.run)):
        run(lambda: held.scatter_update(given))
        assert held.numpy().tolist() == [5, 0, 0]


def test_values_of_unknown_rank(strategy, topology):
    """As `tf.numpy_function` gives them, which may be scalars; also where `run` is given one."""
    workers = topology.num_workers

    @tf.function
    def total(vector):
        def step(scale):
            number = tf.numpy_function(lambda: np.float32(topology.rank + 1), [], tf.float32)
            return scale * number * (tf.ones([2]) if vector else 1.0)

        scale = tf.numpy_function(lambda: np.float32(2), [], tf.float32)
        return strategy.reduce("SUM", strategy.run(step, (scale,)), axis=None)

    sums = [np.sum(total(vector)) for vector in (False, True)]
    assert sums == [workers * (workers + 1), 2 * workers * (workers + 1)]
