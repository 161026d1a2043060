"""Every recipe by its command line, in one process."""

import subprocess

import pytest

from tests.lab_help import ENVIRONMENT
from tests.recipe_runs import RECIPES, command, reported
from tests.thorough import thorough_if

pytestmark = pytest.mark.timeout(600)  # some are several runs


def alone(recipe, directory, *more):
    """What a run of one worker prints."""
    run = subprocess.run(
        command(recipe, directory, *more),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


# Others by other launchers, test_recipes_*.py; by all of them: `make check`.
@pytest.mark.parametrize("recipe", thorough_if(lambda name: name not in ("bert", "gnmt"), RECIPES))
def test_runs_alone(recipe, tmp_path):
    found = reported(alone(recipe, tmp_path))
    assert found["workers"] == "1"
    assert found["bytes on the wire"].startswith("0 ")


def test_goes_on_where_it_ended(tmp_path):
    """Three runs: of one epoch; of two, of which the first is done; of the same two."""
    _, second, third = (
        alone("digits", tmp_path, "--resume", f"--phases=8:{epochs}") for epochs in (1, 2, 2)
    )
    assert "Epoch 2/2" in second and "Epoch 1/2" not in second
    accuracy = reported(second)["test accuracy"]
    assert f"All epochs were done before. Test accuracy {accuracy}" in third


def test_goes_on_with_larger_images(tmp_path):
    """ResNet-50, in half precision: of two phases the first is done."""
    _, second = (alone("resnet50", tmp_path, "--resume", *more) for more in (["--phases=32:1"], []))
    assert "epoch 2/2  size 48" in second and "epoch 1/2" not in second
    rows = (tmp_path / "dawnbench.tsv").read_text().splitlines()[1:]
    assert [row.split("\t")[0] for row in rows] == ["1", "2"]
