"""What does LARS cost, and when does dividing its norms over the workers pay?

make bench-pto                         measures three models on 1 to 8 workers, publishes; root, Linux
python -m benchmarks.pto.main --quick  ResNet-50 on 1 and 2 workers; prints only
"""

import itertools

from benchmarks import cluster, report
from benchmarks.pto import layers, tables
from tf_sparse_strategy.cluster import Netlab

WORKERS = (1, 2, 4, 8)
MEMORY = 17 << 30  # bytes that all workers' tensors may take together
ROUNDS = {"norms": 50, "steps": 20}
# What a worker holds per element. Norms: weights and gradients, as numpy's and as TensorFlow's. Steps: start,
# gradients as TensorFlow's and as numpy's, two sets of weights, a velocity for each of six optimizers, what
# moved in the first steps.
BYTES_PER_ELEMENT = {"norms": 2 * (4 + 4), "steps": 4 * (1 + 2 + 2 + 6 + 2)}


def measure(quick: bool) -> dict:
    """One job per model and number of workers, all on one node: what is divided is computation."""
    models, workers = (tuple(layers.MODELS)[:1], WORKERS[:2]) if quick else (tuple(layers.MODELS), WORKERS)
    results = {"norms": [], "steps": []}
    for count in workers:
        with Netlab(1, count, "1gbit") as lab:
            for model, experiment in itertools.product(models, results):
                elements = layers.elements(layers.MODELS[model]())
                if count * elements * BYTES_PER_ELEMENT[experiment] > MEMORY:
                    continue
                rounds = 3 if quick else ROUNDS[experiment]
                job = cluster.run(
                    lab, "benchmarks.pto.measure", experiment, model, "--rounds", str(rounds)
                )
                results[experiment].append({"model": model, "workers": count, **job})
    return results


if __name__ == "__main__":
    report.main("pto", __doc__, measure, tables.render)
