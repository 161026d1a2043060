"""From what was reached to Markdown. Pure."""

import statistics

from benchmarks.convergence.runs import ADAM, CONTROL, DENSE, DENSITY, HALF, SGD, THROUGHOUT
from benchmarks.report import environment_line, said, table

NEAR, AS_GOOD, WORSE, PERPLEXITY = 0.02, 0.01, 0.03, 0.03  # the goals: points of accuracy; a ratio


def _digits(reached: dict) -> list[str]:
    means = {name: statistics.fmean(values) for name, values in reached.items()}
    lines = []
    for name, goal in [*((name, NEAR) for name in THROUGHOUT), (HALF, AS_GOOD)]:
        behind = means[DENSE] - means[name]
        lines.append(
            f"- {name}: {100 * behind:.1f} points behind dense (goal {100 * goal:g} at most: "
            f"{said(behind <= goal)})."
        )
    pairs = zip(reached[SGD], reached[CONTROL], strict=True)
    worse = statistics.fmean(kept - dropped for kept, dropped in pairs)
    lines.append(
        f"- {CONTROL}: {100 * worse:.1f} points behind that with it, seed by seed (at least "
        f"{100 * WORSE:g} expected: {said(worse >= WORSE)})."
    )
    return lines


def _words(reached: dict) -> list[str]:
    means = {name: statistics.fmean(values) for name, values in reached.items()}
    lines = [
        f"- {name}: {means[name] / means[DENSE] - 1:+.1%} of dense's perplexity (goal {PERPLEXITY:.0%} at "
        f"most: {said(means[name] <= (1 + PERPLEXITY) * means[DENSE])})."
        for name in THROUGHOUT
    ]
    dense, sparse = (means[adams] for adams in ADAM.values())
    return [*lines, f"- With Adam instead of SGD, HiTopK: {sparse / dense - 1:+.1%} of dense's."]


def _table(reached: dict, scale: float) -> str:
    seeds = len(next(iter(reached.values())))
    header = ["scheme", "mean ± sd", *(f"seed {seed}" for seed in range(seeds))]
    rows = []
    for name, values in reached.items():
        deviation = f" ± {scale * statistics.stdev(values):.1f}" if seeds > 1 else ""
        mean = f"{scale * statistics.fmean(values):.1f}{deviation}"
        rows.append([name, mean, *(f"{scale * value:.1f}" for value in values)])
    return table(header, rows)


def render(results: dict) -> str:
    """The answer, one table per task."""
    digits, words = results["digits"], results["words"]
    facts = ", ".join(f"{name} {value}" for name, value in words["facts"].items())
    return "\n\n".join(
        [
            environment_line(results),
            f"{results['workers']} nodes of one worker, density {DENSITY:.0%}.",
            f"### Digits: accuracy on the test images, %, after {digits['epochs']} epochs",
            "\n".join(_digits(digits["reached"])),
            _table(digits["reached"], 100),
            f"### Docstrings: perplexity on the test rows after {words['epochs']} epochs",
            f"Corpus: {facts}.",
            "\n".join(_words(words["reached"])),
            _table(words["reached"], 1),
        ]
    )
