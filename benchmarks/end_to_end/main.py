"""How fast is a whole training step, and how soon has a model learned, in each way of summing gradients?

make report                                    measures, 2D scheduling first, writes docs/results/; 95 minutes
                                               (this part goes on where it was interrupted)
python -m benchmarks.end_to_end.main --quick   two workers, one model; prints only; some minutes
"""

import pathlib

from benchmarks import cluster, continuing, report
from benchmarks.end_to_end import figures, page, tables
from benchmarks.end_to_end.names import MIRRORED, ROWS
from tf_sparse_strategy.cluster import Netlab

MODELS = ("VGG-like", "ResNet-like", "Transformer", "LM")
DENSITY, ROUNDS, STEPS, SEEDS, EPOCHS, ACCURACY = 0.01, 4, 2, 3, 28, 0.95
FOLDER = "benchmarks.end_to_end"
RESULTS = report.ROOT / "docs" / "results"


def measure(quick: bool, file: pathlib.Path | None) -> dict:
    """A job for each model and for real images; an interrupted run goes on beside `file`."""
    nodes, local, rate, models, rounds = 4, 2, 200e6, MODELS, ROUNDS
    seeds, epochs = SEEDS, EPOCHS
    if quick:
        nodes, local, models, rounds, seeds, epochs = 2, 1, MODELS[:1], 2, 1, 2
    place = ("--nodes", str(nodes), "--local", str(local))

    def learn(lab) -> dict:
        training = ("--seeds", str(seeds), "--epochs", str(epochs))
        curves = cluster.run(lab, f"{FOLDER}.learning_mirrored", *training, *place)
        curves |= cluster.run(lab, f"{FOLDER}.learning", *training)
        tables.check_alike(curves)
        return curves

    def time_steps(lab, model: str) -> dict:
        """TensorFlow's own strategy has a job of its own."""
        one = ("--model", model, "--rounds", str(rounds), "--steps", str(STEPS))
        job = cluster.run(lab, f"{FOLDER}.worker", *one, "--density", str(DENSITY))
        theirs = cluster.run(lab, f"{FOLDER}.mirrored", *one, *place)
        job["seconds"][MIRRORED] = theirs["seconds"][MIRRORED]
        return job

    part = file and file.with_suffix(".part.json")
    found = continuing.begin(part, ["learning", *models])
    with Netlab(nodes, local, f"{rate / 1e6:g}mbit") as lab:
        for name in found["planned"]:
            if name not in found["jobs"]:
                found["jobs"][name] = learn(lab) if name == "learning" else time_steps(lab, name)
                continuing.keep(found, part)
    if part:
        part.unlink()
    return {
        "cluster": f"{nodes} nodes of {local} workers",
        "workers": nodes * local,
        "rate": rate,
        "rows": ROWS,
        "density": DENSITY,
        "accuracy": ACCURACY,
        "learning": found["jobs"].pop("learning"),
        "jobs": found["jobs"],
        "environment": found["environment"],
    }


def publish(results: dict, document: str) -> None:
    """Draws the pictures and writes the page."""
    figures.speed(results, RESULTS / "speed.svg")
    figures.learning(results, RESULTS / "learning.svg")
    path = RESULTS / "report.html"
    path.write_text(page.html(document, RESULTS))
    print(f"a page to read: {path}")


if __name__ == "__main__":
    report.main("end_to_end", __doc__, measure, tables.render, "results/README", publish, continues=True)
