"""A worker: trains with every scheme and seed, one after the other."""

import argparse
import json
import time

import keras

import tf_sparse_strategy as tss
from benchmarks.convergence import digits, runs, words


def main() -> None:
    """Writes what was reached as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--task", choices=["digits", "words"], required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--part", type=float, default=1.0, help="of the text")
    args = parser.parse_args()
    facts = {}
    if args.task == "digits":
        schemes = runs.digits(args.epochs, digits.WARM_UP * digits.steps())
    else:
        rows = words.corpus(args.part)
        schemes = runs.words(len(rows[0]) // words.BATCH)  # an epoch
        facts = {"rows": len(rows[0]), "test rows": len(rows[1]), "words": rows[2], "text": rows[3]}
    found: dict[str, list[float]] = {name: [] for name in schemes}
    for seed in range(args.seeds):
        for name, scheme in schemes.items():
            keras.backend.clear_session()
            strategy, begin = tss.SparseStrategy(scheme), time.perf_counter()
            if args.task == "digits":
                sgd = name in (runs.SGD, runs.CONTROL)
                reached = digits.train(strategy, seed, args.epochs, sgd)
            else:
                adam = name in runs.ADAM.values()
                reached = words.train(strategy, seed, args.epochs, rows, adam)
            found[name].append(reached)
            if strategy.topology.rank == 0:
                seconds = time.perf_counter() - begin
                print(f"{args.task}, seed {seed}, {name}: {reached:.4g}, {seconds:.0f} s", flush=True)
    if strategy.topology.rank == 0:
        with open(args.output, "w") as file:
            json.dump({"epochs": args.epochs, "facts": facts, "reached": found}, file)
    strategy.extended.collectives.barrier()


if __name__ == "__main__":
    main()
