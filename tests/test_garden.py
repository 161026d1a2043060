"""Recipes with the Model Garden's models: they are what ours are, and train."""

import json
import os
import subprocess
import sys

import pytest

from examples.bert import model as bert
from examples.common import garden
from examples.resnet50 import model as resnet50
from examples.transformer import model as transformer
from tests import job, small_texts
from tests.garden_models import sizes

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
# What two epochs reach of the tiny sizes, as of ours: a perplexity from 500, an accuracy from 1/24.
GOALS = {"transformer": 170.0, "bert": 0.06}


@pytest.fixture(scope="module")
def found():
    """What garden_models.py prints."""
    command = [sys.executable, "-m", "tests.garden_models"]
    ended = subprocess.run(command, env=os.environ | LEGACY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("size", ["tiny", "laptop"])
@pytest.mark.parametrize("own", [transformer, bert], ids=["transformer", "bert"])
def test_weights_are_as_large_as_ours(own, size, found):
    """So the paper's sizes have the parameters that test_text_models.py counts."""
    name = own.__name__.split(".")[1]
    assert found["sizes"][f"{name}, {size}"] == sizes(own.build_model(own.SIZES[size], False))


def test_resnet50s_weights_are_as_large_as_ours(found):
    assert found["sizes"]["resnet50"] == sizes(resnet50.resnet())


def test_they_read_what_they_may(found):
    """Neither padding nor the words that are to be written."""
    hidden = {"padding", "words behind"}
    for changes in found["read"].values():
        assert hidden & set(changes)
        for what, change in changes.items():
            assert change < 1e-5 if what in hidden else change > 1e-4, (what, change)


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
    settings = {"model": "garden", "phases": "32:1", "sparse_epochs": 1, "warm_up_epochs": 0.5}
    settings |= {"cache_memory": "0MB", "goal": 1, "output_dir": tmp_path}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "examples.resnet50.main", "--recipe=tiny", "--check", *flags]
    ended = subprocess.run(command, env=os.environ | LEGACY, capture_output=True, text=True)
    assert "epoch 1/1  size 32  rate" in ended.stdout, ended.stderr[-3000:]
    assert ended.returncode == 1 and "is below the goal of 100.00%" in ended.stderr


@pytest.mark.parametrize("legacy", [False, True])
def test_the_wrong_keras_is_refused(legacy, monkeypatch):
    monkeypatch.setattr(garden, "IS_LEGACY", not legacy)
    with pytest.raises(RuntimeError, match="TF_USE_LEGACY_KERAS=1"):
        garden.check_keras(legacy)
    monkeypatch.setattr(garden, "IS_LEGACY", legacy)
    garden.check_keras(legacy)
