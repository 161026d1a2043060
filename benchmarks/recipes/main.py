"""What does each recipe reach, how long does it take, and does a second machine change what it learns?

make bench-recipes                          runs all recipes, publishes; more than an hour; root, Linux
python -m benchmarks.recipes.main --quick   one recipe; prints only
"""

import os
import pathlib
import sys
import tempfile

from benchmarks import report
from benchmarks.recipes import runs, tables
from tf_sparse_strategy.cluster import Netlab

SEEDS, NODES, RATE = 3, 2, "1gbit"


def run(lab: Netlab, recipe: runs.Recipe, seed: int) -> dict[str, float]:
    """What a run reached on all of the lab's workers, and its "seconds".

    Raises:
      RuntimeError: it failed.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // len(lab.nodes))  # workers share this machine's cores
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(report.ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": str(threads),
    }
    print(f"{recipe.name}, seed {seed}, {len(lab.nodes)} workers", flush=True)
    with tempfile.TemporaryDirectory(prefix="tss_recipe_") as folder:
        result = lab.run([sys.executable, *recipe.command(seed, folder)], environment)
    first = result.ranks[0]
    if result.exit_code:
        raise RuntimeError(f"{recipe.name} failed with exit code {result.exit_code}: {first.stderr[-4000:]}")
    found = {**runs.figures(first.stdout, recipe.figure), "seconds": result.seconds}
    print(f"  {found}", flush=True)
    return found


def measure(quick: bool, file: pathlib.Path | None) -> dict:
    """Every recipe alone with each seed, then on several nodes with the first."""
    recipes, seeds = (runs.RECIPES[:1], 1) if quick else (runs.RECIPES, SEEDS)
    results = {"cluster": f"{NODES} emulated nodes of one worker, {RATE}", "recipes": {}}
    for recipe in recipes:
        with Netlab(1, 1, RATE) as lab:
            alone = [run(lab, recipe, seed) for seed in range(seeds)]
        with Netlab(NODES, 1, RATE) as lab:
            several = run(lab, recipe, 0)
        results["recipes"][recipe.name] = {"figure": recipe.figure, "alone": alone, "several": several}
        if file:  # an interrupted run leaves what it had
            report.write(file, {"environment": report.environment(), **results})
    return results


if __name__ == "__main__":
    report.main("recipes", __doc__, measure, tables.render, continues=True)
