"""Every recipe by the command that its README gives for several workers."""

import pathlib
import subprocess
import sys

import pytest

from tests.lab_help import ENVIRONMENT
from tests.recipe_runs import RECIPES, command, reported
from tests.thorough import thorough_if

HOROVODRUN = pathlib.Path(sys.executable).with_name("horovodrun")


# Others by other launchers, test_recipes_*.py; by all of them: `make check`.
@pytest.mark.parametrize(
    "recipe", thorough_if(lambda name: name not in ("digits", "language_model"), RECIPES)
)
def test_runs_on_two_workers(recipe, tmp_path):
    run = subprocess.run(
        [HOROVODRUN, "--gloo", "-np", "2", *command(recipe, tmp_path)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.removeprefix("[0]<stdout>:") for line in run.stdout.splitlines()]
    found = reported("\n".join(lines))
    assert found["workers"] == "2"
    assert not found["bytes on the wire"].startswith("0 ")
