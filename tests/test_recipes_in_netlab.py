"""Every recipe by its command line: one process, and two nodes of an emulated cluster."""

import subprocess

import pytest

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tests.recipe_runs import RECIPES, command, reported
from tests.thorough import thorough_if
from tf_sparse_strategy.cluster import Netlab


def test_none_is_left_out():
    assert set(RECIPES) == {path.parent.name for path in (ROOT / "examples").glob("*/main.py")}


def alone(recipe, directory, *more):
    """What a run of one worker prints."""
    run = subprocess.run(
        command(recipe, directory, *more),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


# Each by one launcher, here or in test_recipes_by_horovodrun.py; by all of them: `make check`.
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


@pytest.mark.parametrize(
    "recipe", thorough_if(lambda name: name not in ("resnet50", "transformer"), RECIPES)
)
def test_runs_on_two_nodes(recipe, tmp_path):
    require_namespaces()
    with Netlab(nodes=2, local=1, rate="200mbit") as lab:
        result = lab.run(command(recipe, tmp_path), env=ENVIRONMENT, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    assert reported(result.ranks[0].stdout)["workers"] == "2"
    assert not reported(result.ranks[1].stdout), "only rank 0 reports"
    in_a_step = reported(result.ranks[0].stdout)["bytes on the wire"]
    sent = int(in_a_step.split(" ")[0].replace(",", ""))
    assert sent > 0 and all(link.sent > sent / 2 for link in result.links), (in_a_step, result.links)
