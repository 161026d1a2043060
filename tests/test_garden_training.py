"""Recipes with the Model Garden's models train, and resume, on two workers."""

import subprocess
import sys

import pytest

from tests import job, small_texts

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
HOSTS = "localhost:1,127.0.0.1:1"
# What two epochs reach of the tiny sizes, as of ours: a perplexity from 500, an accuracy.
GOALS = {"transformer": 170.0, "bert": 0.06}


def trained(recipe: str, settings: dict, *switches: str) -> dict[int, list[str]]:
    """By rank, the lines that two workers print."""
    flags = [*switches, *(f"--{name}={value}" for name, value in settings.items())]
    command = [sys.executable, "-m", f"examples.{recipe}.main", "--model=garden", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with job.started(HOSTS, command, LEGACY, **pipes) as workers:
        ended = {rank: worker.communicate(timeout=240) for rank, worker in workers.items()}
        codes = [worker.returncode for worker in workers.values()]
    assert codes == [0, 0], ended[0][1][-3000:]
    return {rank: printed.splitlines() for rank, (printed, _) in ended.items()}


@pytest.mark.parametrize("recipe", GOALS)
def test_it_learns_and_resumes(recipe, tmp_path):
    texts = small_texts.write(tmp_path)
    settings = {
        "size": "tiny",
        "epochs": 2,
        "global_batch_size": 32,
        "learning_rate": 1e-2,
        "text": texts["lines" if recipe == "bert" else "pairs"],
        "output_dir": tmp_path / "logs",
        "goal": GOALS[recipe],
    }
    reached = []
    for epochs in (2, 0):  # the second run finds both epochs done, and tests what it has restored
        printed = trained(recipe, settings, "--check", "--resume")
        assert not any("held-out" in line for line in printed[1])
        reached += [line for line in printed[0] if "held-out" in line]
        assert sum(line.startswith("Epoch ") for line in printed[0]) == epochs
    assert len(reached) == 2 and reached[0] == reached[1]


def test_resnet50_trains(tmp_path):
    """With squares and sparse sums, then rectangles to validate on and exact sums."""
    settings = {"recipe": "tiny", "phases": "32:1,48:1:16:0.5:rect", "sparse_epochs": 1}
    settings |= {"warm_up_epochs": 0.5, "cache_memory": "0MB", "output_dir": tmp_path}
    epochs = [line for line in trained("resnet50", settings)[0] if line.startswith("epoch ")]
    assert [line.split("  rate")[0] for line in epochs] == ["epoch 1/2  size 32", "epoch 2/2  size 48"]
