"""Steps of a last batch of one row, in which the other workers work on a row that counts for nothing."""

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

ON_READ = tf.VariableSynchronization.ON_READ


def last_logs(strategy, keras, of_batch, eagerly=False):
    """What `of_batch(model, replica context, rows)` returns in the second of two steps.

    The first is of P rows, 1 to P; the row of the second is P + 1.
    """

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen = keras.metrics.Mean(name="seen")

        def build(self, shape):
            self.mean = self.add_weight(
                name="mean",
                shape=(),
                initializer="zeros",
                trainable=False,
                aggregation="mean" if keras is keras3 else tf.VariableAggregation.MEAN,
            )
            self.built = True

        def call(self, x):
            return x

        def train_step(self, data):
            replica = tf.distribute.get_replica_context()
            # What counts for nothing is another number than the row of the first worker, which counts.
            return of_batch(self, replica, data[0] + tf.cast(replica.replica_id_in_sync_group, tf.float32))

    with strategy.scope():
        model = Own()
        model.build([None, 1])
        model.compile(run_eagerly=eagerly)
    workers = strategy.num_replicas_in_sync
    x = np.arange(1.0, workers + 2, dtype="float32")[:, np.newaxis]
    history = model.fit(x, x, batch_size=workers, shuffle=False, verbose=0).history
    return {name: float(value) for name, [value] in history.items()}, workers + 1.0


def test_all_gather_leaves_them_out(strategy, topology):
    """But not what is of no batch, as shares of an optimizer's norms."""

    def of_batch(model, replica, rows):
        parts = replica.all_gather(tf.ones([1]), axis=0)
        others = replica.all_gather(rows, axis=0)
        return {"rows": tf.shape(others)[0], "sum": tf.reduce_sum(others), "parts": tf.size(parts)}

    logs, last = last_logs(strategy, keras3, of_batch)
    assert logs == {"rows": 1.0, "sum": last, "parts": topology.num_workers}


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_of_rows_of_a_table(strategy, keras, op):
    def of_batch(model, replica, rows):
        gradient = tf.IndexedSlices(rows, tf.zeros([tf.shape(rows)[0]], tf.int32), tf.constant([2, 1]))
        dense = tf.convert_to_tensor(gradient)
        sums = [tf.convert_to_tensor(x)[0, 0] for x in replica.all_reduce(op, [gradient, dense])]
        return {"slices": sums[0], "dense": sums[1]}

    logs, last = last_logs(strategy, keras, of_batch)
    assert logs == {"slices": last, "dense": last}


@pytest.mark.parametrize("eagerly", [False, True])
def test_variables_with_an_aggregation(strategy, keras, eagerly):
    """The mean is that of rows; a metric that begins anew in the step does so on all workers."""

    def of_batch(model, replica, rows):
        model.mean.assign(tf.reduce_mean(rows))
        model.seen.reset_state()
        model.seen.update_state(rows)
        return {"mean": tf.convert_to_tensor(model.mean), "seen": model.seen.result()}

    logs, last = last_logs(strategy, keras, of_batch, eagerly)
    assert logs == {"mean": last, "seen": last}


def test_reductions_of_all_replicas_together(strategy):
    """As those of one."""

    def together(strategy, x):
        rows = tf.IndexedSlices(x, tf.zeros([tf.shape(x)[0]], tf.int32), tf.constant([1, 1]))
        found = [strategy.reduce(op, x, axis=axis) for op in ("SUM", "MEAN") for axis in (None, 0)]
        return found + [strategy.reduce(op, rows, axis=None).values for op in ("SUM", "MEAN")]

    def of_batch(model, replica, rows):
        found = replica.merge_call(together, args=(rows,))
        return {str(number): tf.reduce_sum(x) for number, x in enumerate(found)}

    logs, last = last_logs(strategy, keras3, of_batch)
    assert logs == dict.fromkeys("012345", last)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_what_a_step_has_added_up_counts(strategy, keras, is_scaled):
    """Gradients of earlier batches, in variables, where this batch has no row for a worker."""
    with strategy.scope():
        weight, total = (tf.Variable(0.0, trainable=trainable) for trainable in (True, False))
        steps = tf.Variable(0.0, trainable=False)
        optimizer = keras.optimizers.SGD(1.0)
        if is_scaled and keras is keras3:
            optimizer = keras3.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
        elif is_scaled:
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1.0)
        if not (is_scaled and keras is not keras3):
            optimizer.build([weight])

    def of_batch(model, replica, rows):
        is_first = tf.cast(steps.assign_add(1.0) == 1.0, tf.float32)
        total.assign_add(is_first * tf.reduce_sum(rows))
        optimizer.apply_gradients([(total, weight)])
        return {"moved": -weight}

    logs, last = last_logs(strategy, keras, of_batch)
    workers = last - 1
    assert logs == {"moved": 2 * workers**2}  # twice 1 + 3 + ...: the first rows and the ranks


def test_what_is_no_sum_of_rows_changes_in_each_step(strategy, keras):
    """Or workers' counts of steps would differ, and the first alone apply gradients that it has added up."""
    with strategy.scope():
        made = [
            tf.Variable(0.0, trainable=False, synchronization=ON_READ, aggregation=aggregation)
            for aggregation in (tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.NONE)
        ]

    def of_batch(model, replica, rows):
        count, own = made
        count.assign_add(1.0)
        own.assign(2.0 * count.read_value())
        least = tf.reduce_min(replica.all_gather(tf.stack([count, own])[tf.newaxis], axis=0), axis=0)
        return {"count": least[0], "own": least[1]}

    logs, _ = last_logs(strategy, keras, of_batch)
    assert logs == {"count": 2.0, "own": 4.0}
