"""A worker: times the norms of a model's layers, or whole steps, each way once per round."""

import argparse
import functools
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import lars_pto
import tf_sparse_strategy as tss
from benchmarks.hand_in import hand_in
from benchmarks.pto import layers, peers
from lars_pto import norms

RATE = 1.0  # of LARS; with equal gradients in every round no weight runs away
LEGACY = ("LARS of tf-models-official",)  # of tf_keras: take TensorFlow's variables and build themselves


def timed(contenders, rounds, strategy) -> dict[str, list[float]]:
    """Seconds of the slowest worker, for each contender in each round after a round of warm-up."""
    comm = strategy.extended.collectives
    times = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            comm.barrier()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {
        name: comm.all_reduce(tf.constant(values[1:], tf.float64), op="max").numpy().tolist()
        for name, values in times.items()
    }


def one_read(arrays):
    """The floor: one dot product w·g per layer, by the BLAS inside numpy, reads both once."""
    return lambda: [np.dot(w, g) for w, g in arrays]


def norms_experiment(shapes, rounds, strategy) -> dict:
    """The norms of the layers that LARS measures: those of rank 2 and above."""
    shapes = [shape for shape in shapes if len(shape) > 1]
    rng = np.random.default_rng(0)
    arrays = [
        [rng.standard_normal(shape, np.float32).ravel() for _ in range(2)] for shape in shapes
    ]
    weights = [tf.constant(w.reshape(s)) for (w, _), s in zip(arrays, shapes, strict=True)]
    gradients = [tf.constant(g.reshape(s)) for (_, g), s in zip(arrays, shapes, strict=True)]
    decays = [0.0] * len(shapes)
    auto = norms.Norms("auto")
    methods = {
        "tf.norm per tensor": peers.norms_one_by_one,
        "l2_loss per tensor": norms.plain_sums,
        "fused": norms.sums_of_squares,
        "fused, layer by layer": norms.sums_layer_by_layer,
        "divided": norms.divided_sums,
        "auto": auto,
    }
    functions = {
        name: tf.function(
            lambda method=method: strategy.run(lambda: method(weights, gradients, decays))
        )
        for name, method in methods.items()
    }
    exact = [[np.dot(w, w.astype("float64")), np.dot(g, g.astype("float64"))] for w, g in arrays]
    for function in functions.values():
        np.testing.assert_allclose(np.array(function()), exact, rtol=1e-4)
    times = timed({"one read": one_read(arrays), **functions}, rounds, strategy)
    return {"seconds": times, "auto": auto.decision._asdict()}


def steps_experiment(shapes, rounds, strategy) -> dict:
    """Whole steps of optimizers: gradients are given, and summed over the workers."""
    ours = functools.partial(lars_pto.LARS, RATE, variant="joint_norm")
    makers = {
        "SGD with momentum": lambda: keras.optimizers.SGD(1e-6, momentum=0.9),
        "LARS by Keras operations": lambda: peers.PlainLARS(RATE),
        "LARS of tf-models-official": peers.official_lars(RATE, "vector"),
        "LARS, fused": lambda: ours(parallel="off"),
        "LARS, fused + PTO": lambda: ours(parallel="on"),
        "LARS, auto": lambda: ours(),
    }
    if strategy.num_replicas_in_sync == 1:
        del makers["LARS, fused + PTO"], makers["LARS, auto"]  # the same there
    makers = {name: (strategy, make) for name, make in makers.items() if make is not None}
    if strategy.num_replicas_in_sync > 1:
        sharded = tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate())
        makers["LARS, sharded update"] = (sharded, ours)
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape, np.float32) for shape in shapes]
    gradients = [tf.constant(np.flip(w)) for w in start]
    # The tensors' own memory: copies would take as much again.
    floor = one_read(
        [(w.ravel(), np.frombuffer(g, np.float32)) for w, g in zip(start, gradients, strict=True)]
    )
    variables, contenders, moved = {}, {"one read": floor}, []
    for name, (where, make) in makers.items():
        with where.scope():
            # One set for all optimizers under a strategy: weights take memory, too.
            if where not in variables:
                variables[where] = [
                    keras.Variable(w, name="vector" if w.ndim == 1 else "tensor") for w in start
                ]
            trained = [getattr(v, "value", v) for v in variables[where]]
            trained = trained if name in LEGACY else variables[where]
            optimizer = make()
            if name not in LEGACY:
                optimizer.build(trained)

        def step(optimizer=optimizer, trained=trained):
            optimizer.apply_gradients(zip(gradients, trained, strict=True))

        contenders[name] = tf.function(lambda step=step, where=where: where.run(step))
        for variable, value in zip(variables[where], start, strict=True):
            variable.assign(value)
        contenders[name]()
        if name != "SGD with momentum":
            moves = (v.numpy() - w for v, w in zip(variables[where], start, strict=True))
            if not moved:
                moved = list(moves)
                continue
            for one, other in zip(moves, moved, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-6, err_msg=name)
    del moved
    return {"seconds": timed(contenders, rounds, strategy)}


def main() -> None:
    """Writes the records as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("experiment", choices=("norms", "steps"))
    parser.add_argument("model", choices=layers.MODELS)
    parser.add_argument("--rounds", type=int, required=True)
    args = parser.parse_args()
    strategy = tss.SparseStrategy()
    experiment = {"norms": norms_experiment, "steps": steps_experiment}[args.experiment]
    found = experiment(layers.MODELS[args.model](), args.rounds, strategy)
    if strategy.topology.rank == 0:
        for name, seconds in found["seconds"].items():
            print(f"{args.model}, {args.experiment}, {name}: {statistics.median(seconds) * 1e3:.2f} ms")
    hand_in(found, args.output, strategy.extended.collectives)


if __name__ == "__main__":
    main()
