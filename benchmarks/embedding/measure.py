"""A worker: times the table's part of a training step, each way once per round, in turn."""

import argparse
import json
import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.embedding import settings
from benchmarks.embedding.row_partition import RowPartition
from tf_sparse_strategy import link_measurement
from tf_sparse_strategy.embedding import placement
from tf_sparse_strategy.gradients import coalesced

RATE = 0.01
FORMULAS = {
    "columns": "columns",
    "gathered, added up first": "gathered",
    "reduced": "reduced",
}  # ways whose cost placement.py predicts
SENT = {
    "gathered": lambda gradient: gradient,
    "gathered, added up first": coalesced,
    "reduced": tf.convert_to_tensor,
}


def gradient_of(rows):
    """Of a loss sum_i |x_i|^2 / 2: the rows themselves, so that errors accumulate."""
    return rows


def initial(setting) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((setting.rows, setting.columns), np.float32)


def trained_by_keras(strategy, setting, way):
    """(the step as a function of ids, the function that reads whole rows of the table)."""
    kind = tss.layers.ShardedEmbedding if way == "columns" else keras.layers.Embedding
    with strategy.scope():
        layer = kind(setting.rows, setting.columns, weights=initial(setting))
        optimizer = keras.optimizers.SGD(RATE)
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
    table = RowPartition(initial(setting), strategy.extended.collectives)
    step = tf.function(lambda ids: table.step(ids, gradient_of, RATE))
    return step, lambda ids: table.step(ids, tf.zeros_like, RATE).numpy()


def main() -> None:
    """Writes the records as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("setting")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], help="ways to leave out")
    args = parser.parse_args()
    strategy = tss.SparseStrategy()
    comm = strategy.extended.collectives
    workers = comm.topology.num_workers
    known = settings.QUICK if args.quick else settings.SETTINGS
    setting = known[args.setting].fitted(workers)
    ids = settings.batches(setting, args.rounds + 1, comm.topology.rank)
    links = link_measurement.measure(comm) if workers > 1 else placement.BY_BYTES
    distinct = int(np.mean([np.unique(batch).size for batch in ids]))
    found = {
        "setting": args.setting,
        "workers": workers,
        "rows": setting.rows,
        "columns": setting.columns,
        "ids": setting.ids,
        "distinct": distinct,
        "seconds": {},
        "bytes": {},
    }
    predicted = placement.costs(
        placement.Table(setting.rows, setting.columns), comm.topology, distinct, links
    )
    found["predicted"] = {
        way: {"seconds": predicted[name].seconds, "bytes": predicted[name].bytes.total}
        for way, name in FORMULAS.items()
    }
    reference, probe = None, tf.constant(ids[0])
    for way in [w for w in ("columns", *SENT, "by rows") if w not in args.without]:
        make = trained_by_rows if way == "by rows" else trained_by_keras
        step, read = make(strategy, setting, *([way] if make is trained_by_keras else []))
        times, sent = [], []
        for batch in ids:
            batch = tf.constant(batch)
            before = comm.traffic()[1].total
            comm.barrier()
            start = time.perf_counter()
            step(batch)
            comm.barrier()
            times.append(time.perf_counter() - start)
            sent.append(comm.traffic()[1].total - before)
        rows = read(probe)
        reference = rows if reference is None else reference
        np.testing.assert_allclose(rows, reference, rtol=1e-3, atol=1e-4, err_msg=way)
        slowest = comm.all_reduce(tf.constant(times[1:], tf.float64), op="max")
        found["seconds"][way] = slowest.numpy().tolist()
        found["bytes"][way] = int(np.mean(sent[1:]))
        del step, read
    if comm.topology.rank == 0:
        with open(args.output, "w") as file:
            json.dump(found, file)
    comm.barrier()


if __name__ == "__main__":
    main()
