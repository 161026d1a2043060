"""Every recipe by its command line: one process, and two nodes of an emulated cluster."""

import subprocess
import sys

import pytest

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tf_sparse_strategy.cluster import Netlab

WORDS = ["--size=tiny", "--synthetic", "--synthetic_steps=3", "--epochs=1", "--global_batch_size=8"]
RECIPES = {
    "digits": ["--phases=8:1", "--nocheck"],
    "resnet50": [
        *("--recipe=tiny", "--phases=32:1:32,48:1:16:0.5:rect"),
        *("--warm_up_epochs=0.5", "--sparse_epochs=1", "--dtype=mixed_float16"),
    ],
    "language_model": WORDS,
    "gnmt": WORDS,
    "transformer": WORDS,
    "bert": WORDS,
}


def test_none_is_left_out():
    assert set(RECIPES) == {path.parent.name for path in (ROOT / "examples").glob("*/main.py")}


def command(recipe, directory, *more):
    module = f"examples.{recipe}.main"
    return [sys.executable, "-m", module, f"--output_dir={directory}", *RECIPES[recipe], *more]


def alone(recipe, directory, *more):
    """What a run of one worker prints."""
    run = subprocess.run(
        command(recipe, directory, *more),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def reported(text):
    """What a run prints at its end, by name."""
    lines = [line.split("  ", 1) for line in text.splitlines() if "  " in line]
    return {name: value.strip() for name, value in lines}


@pytest.mark.parametrize("recipe", RECIPES)
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


@pytest.mark.parametrize("recipe", RECIPES)
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
