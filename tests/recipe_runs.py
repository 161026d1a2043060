"""The shortest runs of all recipes, by their command lines."""

import sys

WORDS = ["--size=tiny", "--synthetic", "--synthetic_steps=3", "--epochs=1", "--global_batch_size=8"]
RECIPES = {
    "digits": ["--phases=8:1", "--synthetic", "--nocheck"],
    "resnet50": [
        *("--recipe=tiny", "--phases=32:1:32,48:1:16:0.5:rect"),
        *("--warm_up_epochs=0.5", "--sparse_epochs=1", "--dtype=mixed_float16"),
    ],
    "language_model": WORDS,
    "gnmt": WORDS,
    "transformer": WORDS,
    "bert": WORDS,
}


def command(recipe, directory, *more):
    module = f"examples.{recipe}.main"
    return [sys.executable, "-m", module, f"--output_dir={directory}", *RECIPES[recipe], *more]


def reported(text):
    """What a run prints at its end, by name."""
    lines = [line.split("  ", 1) for line in text.splitlines() if "  " in line]
    return {name: value.strip() for name, value in lines}
