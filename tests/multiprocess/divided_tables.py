"""Models of one divided table, and by how much memory rises while they are written and read."""

import keras

import tf_sparse_strategy as tss
from benchmarks.embedding import memory
from tf_sparse_strategy.embedding import slices

ROWS, WIDTH = 1 << 16, 1 << 10  # 256 MiB, of which a chunk is a sixteenth
MARGIN = 100 << 20  # for a chunk, as it is sent, received and put together


def one_table(strategy, rows=13, width=5, dtype="float32", momentum=0.0):
    """A table, divided, and its slot if there is momentum."""
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int32")
        model = keras.Model(inputs, tss.layers.ShardedEmbedding(rows, width, dtype=dtype)(inputs))
        model.compile(keras.optimizers.SGD(momentum=momentum), "mse", run_eagerly=True)
        model.optimizer.build(model.trainable_variables)
    return model


def own_bytes(model) -> int:
    """Of this worker's columns of the table."""
    return 4 * slices.of(model.weights[0]).values[0].shape.num_elements()


def rise(run) -> int:
    """By how much this worker's memory rises at most while `run` does."""
    memory.forget_peak()
    before = memory.resident()
    run()
    return memory.peak() - before
