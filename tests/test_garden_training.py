"""Recipes with the Model Garden's models train, and resume."""

import os
import subprocess
import sys

import pytest

from tests import job, small_texts

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
# What two epochs reach of the tiny sizes, as of ours: a perplexity from 500, an accuracy from 1/24.
GOALS = {"transformer": 170.0, "bert": 0.06}


@pytest.mark.parametrize("recipe", GOALS)
def test_it_learns_on_two_workers_and_resumes(recipe, tmp_path):
    texts = small_texts.write(tmp_path)
    settings = {
        "model": "garden",
        "size": "tiny",
        "epochs": 2,
        "global_batch_size": 32,
        "learning_rate": 1e-2,
        "text": texts["lines" if recipe == "bert" else "pairs"],
        "output_dir": tmp_path / "logs",
        "goal": GOALS[recipe],
    }
    flags = ["--check", "--resume", *(f"--{name}={value}" for name, value in settings.items())]
    command = [sys.executable, "-m", f"examples.{recipe}.main", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    reached = []
    for epochs in (2, 0):  # the second run finds both epochs done, and tests what it has restored
        with job.started("localhost:2", command, LEGACY, **pipes) as workers:
            ended = {rank: worker.communicate(timeout=240) for rank, worker in workers.items()}
            codes = [worker.returncode for worker in workers.values()]
        assert codes == [0, 0], ended[0][1][-3000:]
        printed = [ended[rank][0].splitlines() for rank in (0, 1)]
        assert not any("held-out" in line for line in printed[1])
        reached += [line for line in printed[0] if "held-out" in line]
        assert sum(line.startswith("Epoch ") for line in printed[0]) == epochs
    assert len(reached) == 2 and reached[0] == reached[1]


def test_resnet50_trains(tmp_path):
    """With squares, then rectangles to validate on."""
    settings = {"model": "garden", "phases": "32:1,48:1:16:0.5:rect", "sparse_epochs": 1}
    settings |= {"warm_up_epochs": 0.5, "cache_memory": "0MB", "output_dir": tmp_path}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "examples.resnet50.main", "--recipe=tiny", *flags]
    ended = subprocess.run(command, env=os.environ | LEGACY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "epoch 1/2  size 32  rate" in ended.stdout
    assert "epoch 2/2  size 48  rate" in ended.stdout
