"""A worker: sums vectors by each method in turns; time, bytes on the wire, parts of the time, correctness."""

import argparse
import dataclasses
import functools
import gc
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import training
from benchmarks.gradient_communication import methods
from benchmarks.hand_in import hand_in
from custom_ops import mstopk_error_feedback
from tf_sparse_strategy import collectives, link_measurement
from tf_sparse_strategy.cluster.namespaces import INTERFACE, interface_bytes
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.messages import MessageCommunication
from tf_sparse_strategy.communication.work import calibrated

SELECTIONS, SELECTED = 5, 1 << 24  # how often a selection is timed, and of how many elements at most
CHECKED, CHECKED_STEPS = 20_011, 3  # elements (a prime) and steps of the comparison with the exact sum


def sent_over() -> int:
    """Bytes this node has sent to others, headers included."""
    sent, _ = interface_bytes()[INTERFACE]
    return sent


def wrong_sums(density: float, comm: Collectives) -> list[str]:
    """Methods by which, of whole numbers, sent and kept do not make the whole on some worker.

    DGC without momentum, which adds to what it is given.
    """
    p, rank = comm.topology.num_workers, comm.topology.rank
    values = np.random.default_rng(0).integers(-50, 51, (CHECKED_STEPS, p, CHECKED)).astype(np.float32)
    chosen = methods.exact(CHECKED, comm) | methods.sparse(CHECKED, density, comm, momentum=0.0)
    wrong = []
    for name, make in chosen.items():
        method = make()
        step = tf.function(method.step)
        sent = sum(step(tf.constant(g[rank])).numpy() for g in values)
        differs = not np.array_equal(sent + method.kept().numpy(), values.sum(axis=(0, 1)))
        if int(comm.all_reduce(tf.constant(int(differs)))):
            wrong.append(name)
    return wrong


def measure(method: methods.Method, n: int, rounds: int, comm: Collectives) -> dict:
    """Seconds of the slowest worker in each round, and bytes that nodes' links carried per round."""
    x = tf.random.stateless_normal([n], [comm.topology.rank, n])  # nobody else holds it: memory is short
    step = tf.function(method.step)
    step(x)
    first = comm.topology.local == 0
    seconds, links = [], []
    for _ in range(rounds):
        x = tf.roll(x, len(x) // 3, axis=0)  # no gradient is the one before
        method.empty()
        comm.barrier()
        before = sent_over()
        comm.barrier()  # nobody begins before all have read
        begin = time.perf_counter()
        step(x)[:1].numpy()
        seconds.append(time.perf_counter() - begin)
        comm.barrier()
        links.append((sent_over() - before) * first)
    slowest = comm.all_reduce(tf.constant(seconds, tf.float64), op="max").numpy().tolist()
    busiest = comm.all_reduce(tf.constant(links, tf.int64), op="max").numpy().tolist()
    return {"seconds": slowest, "link_bytes": busiest} | breakdown(method, x, comm)


def breakdown(method: methods.Method, x: tf.Tensor, comm: Collectives) -> dict:
    """Seconds of one step by kind of collective, of the first selection, and of the rest; each the slowest
    worker's."""
    comm.sites.timers += 1
    step = tf.function(lambda x: method.step(x))  # traced anew, with the clock
    step(x)
    method.empty()
    comm.barrier()
    whole, _, found = training.time_collectives(comm, lambda: step(x)[:1].numpy())
    comm.sites.timers -= 1
    parts = {
        name.removeprefix("gradients."): seconds
        for name, seconds in found.items()
        if name.startswith("gradients.") and seconds > 0
    }
    if not parts:  # Horovod's own: one operation
        return {"parts": {}}
    computation = max(0.0, whole - sum(parts.values()))
    if getattr(method.scheme, "selector", None) == "exact":
        parts["top-k"] = min(computation, selecting(method.scheme, len(x), comm))
        computation -= parts["top-k"]
    parts["computation"] = computation
    names = list(parts)
    slowest = comm.all_reduce(tf.constant(list(parts.values()), tf.float64), op="max").numpy().tolist()
    return {"parts": dict(zip(names, slowest, strict=True))}


def selecting(scheme: MessageCommunication, n: int, comm: Collectives) -> float:
    """Seconds that MSTopK with error feedback takes for the first message, on all workers at once.

    It is linear; of large vectors a part is selected from, as memory is short.
    """
    whole = scheme.share(comm.topology).length(n)
    length = min(whole, SELECTED)
    x = tf.random.stateless_normal([length], [comm.topology.rank, n])
    residual, seconds = tf.zeros_like(x), []
    select = tf.function(lambda: mstopk_error_feedback(x, residual, scheme.count(length)))
    for _ in range(SELECTIONS):
        comm.barrier()
        begin = time.perf_counter()
        select().values[:1].numpy()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * whole / length


class Predictions:
    """Seconds by the cost model; each scheme is calibrated once, as `Auto` does it."""

    def __init__(self, comm: Collectives):
        self._topology, self.links = comm.topology, link_measurement.measure(comm)
        self._model = functools.cache(lambda scheme: calibrated(self.links, scheme, comm))

    def of(self, method: methods.Method, n: int) -> dict[str, float]:
        """Of one step, and what was calibrated; nothing where Horovod computes; collective."""
        if method.scheme is None:
            return {}
        model = self._model(method.scheme)
        seconds = method.scheme.cost(n, self._topology, model).seconds
        return {"predicted": seconds, "selection": model.selection, "start": model.selection_start}


def main() -> None:
    """Writes what was measured as JSON, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--plan", required=True, help="JSON: [[elements, [densities], rounds], ...]")
    args = parser.parse_args()
    collectives.start()
    comm = Collectives(collectives.find_topology())
    predictions = Predictions(comm)
    records, wrong = [], wrong_sums(methods.COMPARED, comm)
    for n, densities, rounds in json.loads(args.plan):
        for density in (None, *densities):
            chosen = methods.exact(n, comm) if density is None else methods.sparse(n, density, comm)
            for name, make in chosen.items():
                method = make()
                record = {
                    "method": name,
                    "n": n,
                    "density": density,
                    **predictions.of(method, n),
                    **measure(method, n, rounds, comm),
                }
                records.append(record)
                del method
                gc.collect()  # functions and residuals of the last one
                if comm.topology.rank == 0:
                    shown = ", ".join(f"{s:.3f}" for s in record["seconds"])
                    print(f"{n} elements, density {density}, {name}: {shown} s", flush=True)
    found = {"links": dataclasses.asdict(predictions.links), "wrong": wrong, "records": records}
    hand_in(found, args.output, comm)


if __name__ == "__main__":
    main()
