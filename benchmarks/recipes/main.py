"""What does each recipe reach, alone and on two nodes, and how long does it take?

make bench-recipes                          runs all recipes, publishes; about an hour; root, Linux
python -m benchmarks.recipes.main --quick   one recipe; prints only

A run that was interrupted goes on: a recipe in benchmarks/recipes/results/results.json that was run by the
same code is not run again. To run all again, delete the file.
"""

import os
import pathlib
import sys
import tempfile

from benchmarks import cluster, continuing, report
from benchmarks.recipes import runs, tables
from tf_sparse_strategy.cluster import Netlab

SEEDS, NODES, RATE = 3, 2, "1gbit"


def run(lab: Netlab, recipe: runs.Recipe, seed: int) -> dict[str, float]:
    """What a run reached on all of the lab's workers, and its "seconds".

    Raises:
      RuntimeError: it failed.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // len(lab.nodes))  # workers share this machine's cores
    environment = {**os.environ, **cluster.ENVIRONMENT, "TF_NUM_INTRAOP_THREADS": str(threads)}
    print(f"{recipe.name}, seed {seed}, {len(lab.nodes)} workers", flush=True)
    with tempfile.TemporaryDirectory(prefix="tss_recipe_") as folder:
        result = lab.run([sys.executable, *recipe.command(seed, folder)], environment)
    for rank in result.ranks:
        if rank.exit_code:
            said = rank.stderr[-4000:]
            raise RuntimeError(f"{recipe.name}, rank {rank.rank}: exit code {rank.exit_code}\n{said}")
    found = {**runs.figures(result.ranks[0].stdout, recipe.figure), "seconds": result.seconds}
    print(f"  {found}", flush=True)
    return found


def measure(quick: bool, file: pathlib.Path | None) -> dict:
    """Every recipe alone with the first seed, then on several nodes with each; kept in `file` as it goes."""
    recipes, seeds = (runs.RECIPES[:1], 1) if quick else (runs.RECIPES, SEEDS)
    found = continuing.begin(file, (recipe.name for recipe in recipes))
    found["cluster"] = f"{NODES} emulated nodes of one worker, {RATE}"
    for recipe in recipes:
        if recipe.name in found["jobs"]:
            continue
        with Netlab(1, 1, RATE) as lab:
            alone = run(lab, recipe, 0)
        with Netlab(NODES, 1, RATE) as lab:
            several = [run(lab, recipe, seed) for seed in range(seeds)]
        found["jobs"][recipe.name] = {"figure": recipe.figure, "alone": alone, "several": several}
        continuing.keep(found, file)
    return found


if __name__ == "__main__":
    report.main("recipes", __doc__, measure, tables.render, continues=True)
