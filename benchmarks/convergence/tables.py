"""From what was reached to Markdown. Pure."""

import statistics

from benchmarks.convergence.runs import CONTROL, DENSE, DENSITY, HALF, THROUGHOUT
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
    pairs = zip(reached["HiTopK"], reached[CONTROL], strict=True)
    worse = statistics.fmean(kept - dropped for kept, dropped in pairs)
    lines.append(
        f"- {CONTROL}: {100 * worse:.1f} points behind HiTopK with it, seed by seed (at least "
        f"{100 * WORSE:g} expected: {said(worse >= WORSE)})."
    )
    return lines


def _words(reached: dict) -> list[str]:
    means = {name: statistics.fmean(values) for name, values in reached.items()}
    return [
        f"- {name}: {means[name] / means[DENSE] - 1:+.1%} of dense's perplexity (goal {PERPLEXITY:.0%} at "
        f"most: {said(means[name] <= (1 + PERPLEXITY) * means[DENSE])})."
        for name in THROUGHOUT
    ]


def _table(reached: dict, scale: float) -> str:
    seeds = len(next(iter(reached.values())))
    header = ["scheme", "mean", *(f"seed {seed}" for seed in range(seeds))]
    rows = [
        [name, *(f"{scale * value:.1f}" for value in (statistics.fmean(values), *values))]
        for name, values in reached.items()
    ]
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
