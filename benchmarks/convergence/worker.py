"""A worker: trains with every scheme and seed, one after the other."""

import argparse
import time
from collections.abc import Callable

import keras
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.convergence import digits, runs, words
from benchmarks.hand_in import hand_in
from examples.common.strategy import communication
from tf_sparse_strategy.communication import Communication


def of_digits(quick: bool) -> tuple[dict[str, Communication], Callable, dict]:
    """(schemes, (strategy, name, seed) -> accuracy, facts that the runs fill)."""
    config = digits.QUICK if quick else digits.RECORD
    schemes = runs.digits(communication(config), config.epochs * digits.steps(config))
    facts = {"epochs": config.epochs}

    def reach(strategy, name, seed):
        result = digits.trained(config, strategy, seed, sgd=name in runs.BY_SGD)
        if name == runs.RECIPE:
            facts["part sent"] = max(facts.get("part sent", 0), digits.part_sent(result, config))
        return result.test_accuracy

    return schemes, reach, facts


def of_words(quick: bool) -> tuple[dict[str, Communication], Callable, dict]:
    """(schemes, (strategy, name, seed) -> perplexity, facts)."""
    epochs, part = (1, 0.02) if quick else (words.EPOCHS, 1.0)
    rows = words.corpus(part)
    training, test, vocabulary, digest = rows
    corpus = {"rows": len(training), "test rows": len(test), "words": vocabulary, "text": digest}

    def reach(strategy, name, seed):
        return words.train(strategy, seed, epochs, rows, adam=name in runs.ADAM.values())

    schemes = runs.words(epochs * (len(training) // words.BATCH))
    return schemes, reach, {"epochs": epochs, "corpus": corpus}


def main() -> None:
    """Writes what was reached as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--task", choices=["digits", "words"], required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shared", action="store_true", help="only what nodes of several workers train")
    args = parser.parse_args()
    keras.utils.disable_interactive_logging()  # of progress within a run
    schemes, reach, facts = (of_digits if args.task == "digits" else of_words)(args.quick)
    schemes = {name: scheme for name, scheme in schemes.items() if name in runs.SHARED or not args.shared}
    reached: dict[str, list[float]] = {name: [] for name in schemes}
    sent: dict[str, list[float]] = {name: [] for name in schemes}  # MB, of all workers, to other nodes
    for seed in range(args.seeds):
        for name, scheme in schemes.items():
            keras.backend.clear_session()
            strategy, begin = tss.SparseStrategy(scheme), time.perf_counter()
            reached[name].append(reach(strategy, name, seed))
            comm = strategy.extended.collectives
            crossed = tf.constant(1e-6 * comm.traffic()[1].cross, tf.float64)
            sent[name].append(float(comm.all_reduce(crossed, purpose="benchmark")))
            if strategy.topology.rank == 0:
                seconds = time.perf_counter() - begin
                found = f"{reached[name][-1]:.4g}, {sent[name][-1]:.0f} MB, {seconds:.0f} s"
                print(f"{args.task}, seed {seed}, {name}: {found}", flush=True)
    hand_in({"reached": reached, "sent": sent, **facts}, args.output, comm)


if __name__ == "__main__":
    main()
