"""The picture of a run: loss and accuracy by epoch."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib import ticker

matplotlib.use("Agg")  # writes files, needs no screen

from matplotlib import pyplot  # noqa: E402  the backend comes first


def save_curves(history: Mapping[str, Sequence[float]], title: str, path: pathlib.Path) -> None:
    """Writes a PNG with loss on the left and accuracy on the right, training and test in each."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot(history["epoch"], history[name], "o-", markersize=3, label="training")
        axes.plot(history["epoch"], history[f"val_{name}"], "s-", markersize=3, label="test")
        axes.set(xlabel="epoch", title=name.capitalize())
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    left.set(yscale="log", ylabel="cross-entropy (log scale)")
    right.set(ylabel="share of images")
    right.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=None))
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
