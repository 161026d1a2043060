"""What do the norms of LARS cost, and when does dividing them over the workers pay?

make bench-pto                         measures three models on 1 to 8 workers, publishes; root, Linux
python -m benchmarks.pto.main --quick  ResNet-50 on 1 and 2 workers; prints only
"""

from benchmarks import cluster, report
from benchmarks.pto import layers, tables
from tf_sparse_strategy.cluster import Netlab

WORKERS = (1, 2, 4, 8)
MEMORY = 8 << 30  # bytes that all workers' weights and gradients may take together
STEPS_MODELS = ("ResNet-50", "Transformer")
BYTES_PER_ELEMENT = 2 * (4 + 4)  # weights and gradients, as numpy's and as TensorFlow's


def measure(quick: bool) -> dict:
    """One job per model and number of workers, all on one node: what is divided is computation."""
    models, workers, more = tuple(layers.MODELS), WORKERS, ()
    if quick:
        models, workers, more = models[:1], WORKERS[:2], ("--rounds", "3")
    results = {"norms": [], "steps": []}
    for count in workers:
        with Netlab(1, count, "1gbit") as lab:
            for model in models:
                elements = layers.elements(layers.MODELS[model]())
                if count * elements * BYTES_PER_ELEMENT > MEMORY:
                    continue
                job = cluster.run(lab, "benchmarks.pto.measure", "norms", model, *more)
                results["norms"].append({"model": model, "workers": count, **job})
                if count == 1 and model in STEPS_MODELS:
                    job = cluster.run(lab, "benchmarks.pto.measure", "steps", model, *more)
                    results["steps"].append({"model": model, **job})
    return results


if __name__ == "__main__":
    report.main("pto", __doc__, measure, tables.render)
