"""The Model Garden's models in recipes are what ours are."""

import json
import os
import subprocess
import sys

import pytest

from examples.bert import model as bert
from examples.common import garden
from examples.resnet50 import model as resnet50
from examples.transformer import model as transformer
from tests.garden_models import sizes

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


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


def test_resnet50s_blocks_start_as_their_shortcuts(found):
    """As ours do: the Model Garden's own start from ones, and average longer."""
    told = {"count": 53, "zero gammas": 16, "momentum, epsilon": [[0.9, 1e-5]]}
    assert found["norms"] == told


def test_resnet50s_logits_are_ours(found):
    """The Model Garden's own are as coarse as the rest of the model, and start as large as Glorot's."""
    told = {"convolutions": ["float16"], "dtype": "float32", "deviation": pytest.approx(0.01, rel=0.01)}
    assert found["logits"] == told


def test_they_read_what_they_may(found):
    """Neither padding nor the words that are to be written."""
    hidden = {"padding", "words behind"}
    for changes in found["read"].values():
        assert hidden & set(changes)
        for what, change in changes.items():
            assert change < 1e-5 if what in hidden else change > 1e-4, (what, change)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_wrong_keras_is_refused(legacy, monkeypatch):
    monkeypatch.setattr(garden, "IS_LEGACY", not legacy)
    with pytest.raises(RuntimeError, match="TF_USE_LEGACY_KERAS=1"):
        garden.check_keras(legacy)
    monkeypatch.setattr(garden, "IS_LEGACY", legacy)
    garden.check_keras(legacy)
