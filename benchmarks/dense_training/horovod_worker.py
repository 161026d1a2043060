"""A worker: SparseStrategy and Horovod's bare tape in turns, and the links' predictions."""

import dataclasses
import os

import horovod.tensorflow as hvd
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.dense_training import ways
from benchmarks.hand_in import arguments, hand_in
from benchmarks.training import horovods_gradient
from tf_sparse_strategy import cost_model, link_measurement
from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Dense

# By name: how gradients are summed, and the size limit of a bucket, None for the default.
VARIANTS = {
    "SparseStrategy(dense)": ("dense", None),
    "SparseStrategy(dense), buckets of 32 MiB": ("dense", 32 << 20),
    "SparseStrategy(torus2d)": ("torus2d", None),
}


def predicted(
    strategy: tss.SparseStrategy, bucket_bytes: int | None, model, links: cost_model.LinkModel
) -> float:
    """Seconds of one step's reductions by the cost model; buckets one after the other, unless fused."""
    specs = [TensorSpec(i, tuple(v.shape), "float32", 4) for i, v in enumerate(model.trainable_variables)]
    scheme, topology = strategy.communication, strategy.topology
    is_fused = isinstance(scheme, Dense) and os.environ.get("HOROVOD_FUSION_THRESHOLD") != "0"
    limit = 4 * model.count_params() if is_fused else bucket_bytes or scheme.bucket_bytes
    plan = BucketPlan.build(specs, limit)
    costs = [scheme.cost(bucket.num_elements, topology, links) for bucket in plan.buckets]
    return sum(cost.seconds for cost in costs)


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    args = arguments(__doc__, width=int, rounds=int, steps=int)
    strategies = {
        name: tss.SparseStrategy(scheme, bucket_bytes)
        for name, (scheme, bucket_bytes) in VARIANTS.items()
    }
    workers, rank = hvd.size(), hvd.rank()
    comm = Collectives(strategies["SparseStrategy(dense)"].topology)
    links = link_measurement.measure(comm)
    methods = {
        name: ways.strategy_method(strategy, workers, args.width)
        for name, strategy in strategies.items()
    }
    methods["bare Horovod"] = ways.plain_method(workers, args.width, horovods_gradient())
    methods["no communication"] = ways.plain_method(workers, args.width)
    differences = ways.difference_to_one_process(methods, workers, rank, args.width)
    largest = comm.all_reduce(tf.constant(list(differences.values()), tf.float64), op="max").numpy()
    times = ways.time_rounds(methods, workers, rank, args.rounds, args.steps)
    model = methods["bare Horovod"].model
    found = {
        "links": dataclasses.asdict(links),
        "parameters": model.count_params(),
        "predicted": {
            name: predicted(strategy, VARIANTS[name][1], model, links)
            for name, strategy in strategies.items()
        },
        "differences": dict(zip(methods, largest.tolist(), strict=True)),
        "seconds": times,
    }
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
