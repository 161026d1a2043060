"""A worker: times the table's part of a training step, each way by itself."""

import argparse
import gc
import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.embedding import settings
from benchmarks.embedding.row_partition import RowPartition
from benchmarks.hand_in import hand_in
from tf_sparse_strategy import cost_model, link_measurement
from tf_sparse_strategy.embedding import placement
from tf_sparse_strategy.gradient_kinds import coalesced
from tf_sparse_strategy.topology import Group

RATE = 0.01
PATIENCE = 15  # seconds, after which no further step of one way is begun
SENT = {
    "gathered": lambda gradient: gradient,
    "gathered, added up first": coalesced,
    "reduced": tf.convert_to_tensor,
}


class AsTheyAre(keras.optimizers.SGD):
    """To which the strategy sends rows so; of Keras's own it adds them up."""


def gradient_of(rows):
    """Of a loss sum_i |x_i|^2 / 2: the rows themselves, so that errors accumulate."""
    return rows


def initializer() -> keras.initializers.Initializer:
    """Of every way's table. The values themselves, handed to a layer, would stay in its configuration."""
    return keras.initializers.RandomNormal(stddev=1.0, seed=0)


def trained_by_keras(strategy, setting, way):
    """(the step as a function of ids, the function that reads whole rows of the table)."""
    kind = tss.layers.ShardedEmbedding if way == "columns" else keras.layers.Embedding
    with strategy.scope():
        layer = kind(setting.rows, setting.columns, embeddings_initializer=initializer())
        layer.build()
        optimizer = (AsTheyAre if way == "gathered" else keras.optimizers.SGD)(RATE)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        variables = layer.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids))) / 2
        [gradient] = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([SENT.get(way, lambda g: g)(gradient)], variables)

    step = tf.function(lambda ids: strategy.run(replica, args=(ids,)), reduce_retracing=True)
    return step, lambda ids: predict(strategy, layer, ids)


def predict(strategy, layer, ids):
    return strategy.experimental_local_results(strategy.run(layer, args=(ids,)))[0].numpy()


def trained_by_rows(strategy, setting):
    whole = initializer()((setting.rows, setting.columns))
    table = RowPartition(whole, strategy.extended.collectives)
    step = tf.function(lambda ids: table.step(ids, gradient_of, RATE))
    return step, lambda ids: table.step(ids, tf.zeros_like, RATE).numpy()


def predictions(setting, topology, distinct, links) -> dict:
    """{way: {"seconds", "bytes"}} of a worker's step; communication alone."""
    table = placement.Table(setting.rows, setting.columns)
    found, row = placement.costs(table, topology, distinct, links), setting.columns * 4
    exchanges = [cost_model.all_to_all(topology, distinct * 4, links)]
    exchanges += [cost_model.all_to_all(topology, distinct * row, links)] * 2
    costs = {
        "columns": placement.exchange(topology, distinct, row, links),
        "gathered": placement.costs(table, topology, setting.ids, links)["gathered"],
        "gathered, added up first": found["gathered"],
        "reduced": found["reduced"],
        "by rows": exchanges[0] + exchanges[1] + exchanges[2],
    }
    return {way: {"seconds": c.seconds, "bytes": c.bytes.total} for way, c in costs.items()}


def timed(comm, step, batch) -> tuple[float, float, float]:
    """(seconds until the slowest is done, bytes that a worker sends within its node, to others: means)."""
    before = comm.traffic()[1]
    comm.barrier()
    start = time.perf_counter()
    step(tf.constant(batch))
    comm.barrier()
    seconds = tf.constant(time.perf_counter() - start, tf.float64)
    after = comm.traffic()[1]
    sent = tf.constant([after.local - before.local, after.cross - before.cross], tf.float64)
    within, across = (comm.all_reduce(sent) / comm.topology.num_workers).numpy().tolist()
    return float(comm.all_reduce(seconds, op="max")), within, across


def arguments(description: str) -> argparse.Namespace:
    """What a worker is told: where its part goes, which table, and how often."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output")
    parser.add_argument("setting")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Writes the records as JSON, on rank 0."""
    args = arguments(__doc__)
    strategy = tss.SparseStrategy()
    strategy.extended.slices.group = Group.GLOBAL  # benchmarks/node_lookup compares
    comm = strategy.extended.collectives
    workers = comm.topology.num_workers
    setting = settings.known(args.quick)[args.setting].fitted(workers)
    ids = settings.batches(setting, args.rounds + 1, comm.topology.rank)
    links = link_measurement.measure(comm)
    mine = tf.constant(np.mean([np.unique(batch).size for batch in ids]))
    distinct = int(comm.all_reduce(mine) / workers)
    found = {
        **settings.facts(args.setting, setting),
        "workers": workers,
        "distinct": distinct,
        "predicted": predictions(setting, comm.topology, distinct, links),
        "seconds": {},
        "bytes": {},
    }
    reference, probe = None, tf.constant(ids[0])
    for way in ("columns", *SENT, "by rows"):
        make = trained_by_rows if way == "by rows" else trained_by_keras
        step, read = make(strategy, setting, *([way] if make is trained_by_keras else []))
        measured = [timed(comm, step, ids[0])]
        rows = read(probe)
        reference = rows if reference is None else reference
        np.testing.assert_allclose(rows, reference, rtol=1e-3, atol=1e-4, err_msg=way)
        if measured[0][0] < PATIENCE:
            measured = []  # it has traced the step, too
        for batch in ids[1:]:
            if sum(seconds for seconds, *_ in measured) < PATIENCE:
                measured.append(timed(comm, step, batch))
        found["seconds"][way] = [seconds for seconds, *_ in measured]
        found["bytes"][way] = int(np.mean([within + across for _, within, across in measured]))
        del step, read
        gc.collect()  # the way's table, which a cycle holds
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
