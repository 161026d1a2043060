"""From what was reached to Markdown. Pure."""

import statistics

from benchmarks.convergence.runs import (
    ADAM,
    AT_ONCE,
    CONTROLLED,
    DENSE,
    DENSE_SGD,
    DENSITY,
    OF_DIGITS,
    OF_RECIPE,
    OF_SGD,
    SHARED,
    THROUGHOUT,
    WITHOUT,
    WORDS_WITHOUT,
)
from benchmarks.report import environment_line, mean_and_deviation, said, table

# The goals: accuracy; points of it; a part; a ratio.
LEAST = {DENSE: 0.98} | dict.fromkeys(OF_RECIPE, 0.97)
LEAST |= dict.fromkeys([*OF_DIGITS, AT_ONCE, *OF_SGD], 0.94)
NEAR = dict.fromkeys(OF_RECIPE, 0.01) | dict.fromkeys([*OF_DIGITS, *OF_SGD], 0.02)  # behind dense
WORSE, SENT, PERPLEXITY = 0.03, 0.05, 0.03


def _digits(digits: dict) -> list[str]:
    reached = digits["reached"]
    means = {name: statistics.fmean(values) for name, values in reached.items()}
    lines = []
    for name, least in LEAST.items():
        found = f"- {name}: {means[name]:.1%} (goal {least:.0%} at least: {said(means[name] >= least)})"
        if name in NEAR:
            exact = DENSE_SGD if name in OF_SGD else DENSE
            behind = means[exact] - means[name]
            goal = f"goal {100 * NEAR[name]:g} at most: {said(behind <= NEAR[name])}"
            found += f", {100 * behind:.1f} points behind {exact} ({goal})"
        lines.append(f"{found}.")
    for name in SHARED:
        behind = means[DENSE] - statistics.fmean(digits["shared"]["reached"][name])
        lines.append(
            f"- {name} on nodes of two: {100 * behind:.1f} points behind {DENSE} (goal {100 * NEAR[name]:g} "
            f"at most: {said(behind <= NEAR[name])})."
        )
    sent = digits["part sent"]
    lines.append(
        f"- In its sparse epochs the recipe sends {sent:.1%} of the bytes of its exact ones between nodes "
        f"(goal {SENT:.0%} at most: {said(sent <= SENT)})."
    )
    for name, without in WITHOUT.items():
        pairs = zip(reached[name], reached[without], strict=True)
        worse = statistics.fmean(kept - dropped for kept, dropped in pairs)
        found = f"- {without}: {100 * worse:.1f} points behind that with it, seed by seed"
        if name in CONTROLLED:
            found += f" (at least {100 * WORSE:g} expected: {said(worse >= WORSE)})"
        lines.append(f"{found}.")
    return lines


def _words(words: dict) -> list[str]:
    means = {name: statistics.fmean(values) for name, values in words["reached"].items()}
    sparse = {name: means[name] for name in THROUGHOUT}
    sparse |= {f"{n} on nodes of two": statistics.fmean(words["shared"]["reached"][n]) for n in SHARED}
    lines = [
        f"- {name}: {mean / means[DENSE] - 1:+.1%} of dense's perplexity (goal {PERPLEXITY:.0%} at "
        f"most: {said(mean <= (1 + PERPLEXITY) * means[DENSE])})."
        for name, mean in sparse.items()
    ]
    for without, kind in WORDS_WITHOUT.items():
        worse = means[without] / means[kind.__name__] - 1
        lines.append(
            f"- {without}: {worse:+.1%} of that with it (at least {WORSE:.0%} expected: "
            f"{said(worse >= WORSE)})."
        )
    dense, sparse = (means[adams] for adams in ADAM.values())
    return [*lines, f"- With Adam instead of SGD, HiTopK: {sparse / dense - 1:+.1%} of dense's."]


def _table(task: dict, scale: float) -> str:
    seeds = len(task["reached"][DENSE])
    header = ["scheme", "mean ± sd", *(f"seed {seed}" for seed in range(seeds)), "MB between nodes"]
    rows = []
    for found, where in ((task, ""), (task["shared"], " on nodes of two")):
        for name, values in found["reached"].items():
            mean = mean_and_deviation(values, scale, "{:.1f}".format)
            each = [f"{scale * value:.1f}" for value in values]
            rows.append([name + where, mean, *each, f"{statistics.fmean(found['sent'][name]):.0f}"])
    return table(header, rows)


def render(results: dict) -> str:
    """The answer, one table per task."""
    digits, words = results["digits"], results["words"]
    facts = ", ".join(f"{name} {value}" for name, value in words["corpus"].items())
    return "\n\n".join(
        [
            environment_line(results),
            f"{results['nodes']} nodes of one worker, density {DENSITY:.0%}.",
            f"### Digits: accuracy on the test images, %, after {digits['epochs']} epochs",
            "\n".join(_digits(digits)),
            _table(digits, 100),
            f"### Docstrings: perplexity on the test rows after {words['epochs']} epochs",
            f"Corpus: {facts}.",
            "\n".join(_words(words)),
            _table(words, 1),
        ]
    )
