"""How fast is a whole training step, and how soon has a model learned, in each way of summing gradients?

make report                                    measures, 2D scheduling first, writes docs/results/; 95 minutes
python -m benchmarks.end_to_end.main --quick   two workers, one model; prints only; some minutes
"""

from benchmarks import cluster, report
from benchmarks.end_to_end import figures, page, tables
from benchmarks.end_to_end.names import MIRRORED, ROWS
from tf_sparse_strategy.cluster import Netlab

MODELS = ("VGG-like", "ResNet-like", "Transformer", "LM")
DENSITY, ROUNDS, STEPS, SEEDS, EPOCHS, ACCURACY = 0.01, 4, 2, 3, 28, 0.95
RESULTS = report.ROOT / "docs" / "results"


def measure(quick: bool) -> dict:
    """Jobs for each model and for real images; TensorFlow's own strategy has jobs of its own."""
    nodes, local, rate, models, rounds = 4, 2, 200e6, MODELS, ROUNDS
    seeds, epochs = SEEDS, EPOCHS
    if quick:
        nodes, local, models, rounds, seeds, epochs = 2, 1, MODELS[:1], 2, 1, 2
    common = ("--rounds", str(rounds), "--steps", str(STEPS))
    place, folder = ("--nodes", str(nodes), "--local", str(local)), "benchmarks.end_to_end"
    jobs = {}
    with Netlab(nodes, local, f"{rate / 1e6:g}mbit") as lab:
        training = ("--seeds", str(seeds), "--epochs", str(epochs))
        learning = cluster.run(lab, f"{folder}.learning_mirrored", *training, *place)
        learning |= cluster.run(lab, f"{folder}.learning", *training)
        tables.check_alike(learning)
        for model in models:
            one = ("--model", model, *common)
            job = cluster.run(lab, f"{folder}.worker", *one, "--density", str(DENSITY))
            theirs = cluster.run(lab, f"{folder}.mirrored", *one, *place)
            job["seconds"][MIRRORED] = theirs["seconds"][MIRRORED]
            jobs[model] = job
    return {
        "cluster": f"{nodes} nodes of {local} workers",
        "workers": nodes * local,
        "rate": rate,
        "rows": ROWS,
        "density": DENSITY,
        "accuracy": ACCURACY,
        "jobs": jobs,
        "learning": learning,
    }


def publish(results: dict, document: str) -> None:
    """Draws the pictures and writes the page."""
    figures.speed(results, RESULTS / "speed.svg")
    figures.learning(results, RESULTS / "learning.svg")
    path = RESULTS / "report.html"
    path.write_text(page.html(document, RESULTS))
    print(f"a page to read: {path}")


if __name__ == "__main__":
    report.main("end_to_end", __doc__, measure, tables.render, "results/README", publish)
