"""The text recipes' own synthetic batches, of the paper's sizes: rows of the tables' gradients; no models."""

import dataclasses

import numpy as np
import pytest

from examples.bert import config as bert_config
from examples.bert import train as bert
from examples.bert.model import SIZES as BERT_SIZES
from examples.gnmt import config as gnmt_config
from examples.gnmt.model import SIZES as GNMT_SIZES
from examples.language_model import config as language_model_config
from examples.language_model import train as language_model
from examples.language_model.model import SIZES as LM_SIZES
from examples.text import translation, zipf
from examples.text.zipf import gradient_rows
from examples.transformer import config as transformer_config
from examples.transformer.model import SIZES as TRANSFORMER_SIZES

WORKERS, STEPS = 4, 24


def paper(config):
    """The recipe's settings, of an epoch of a few steps."""
    return dataclasses.replace(config.RECIPES["paper"], synthetic_steps=STEPS)


def of_translation(config, size, length, law):
    """What both tables read."""
    settings = paper(config)
    samples, _ = translation.loader(settings, size.vocabulary, length, law)(length)
    return samples.inputs, settings.global_batch_size


def mean_rows(ids, batch):
    """[original, coalesced, prior] of a worker, the mean over the steps."""
    steps = ids.reshape(STEPS, WORKERS, batch // WORKERS * ids.shape[1])
    found = [gradient_rows(a, b) for a, b in zip(steps, steps[1:], strict=False)]
    return np.mean([dataclasses.astuple(rows) for rows in found], axis=0)


@pytest.mark.parametrize("table", ["source", "target"])
def test_gnmt(table):
    size = GNMT_SIZES["paper"]
    inputs, batch = of_translation(gnmt_config, size, size.drawn, zipf.GNMT)
    np.testing.assert_allclose(mean_rows(inputs[table], batch), [3328, 1559, 741], rtol=0.02)


@pytest.mark.parametrize("table", ["source", "target"])
def test_transformer(table):
    """50 sentences of 90 words stand for the paper's 4,506."""
    size = TRANSFORMER_SIZES["paper"]
    inputs, batch = of_translation(transformer_config, size, size.length, zipf.TRANSFORMER)
    np.testing.assert_allclose(mean_rows(inputs[table], batch), [4506, 2123, 1141], rtol=0.02)


def test_bert():
    settings = paper(bert_config)
    samples, _ = bert.loader(settings)(BERT_SIZES["paper"].length)
    found = mean_rows(samples.inputs["ids"], settings.global_batch_size)
    np.testing.assert_allclose(found, [12_288, 1879, 1090], rtol=0.02)


def test_language_model_reads_fewer_words_than_the_papers():
    """The published model's 128 rows of 20 words, not 4,437: of fewer words, a larger part is distinct."""
    settings = paper(language_model_config)
    samples, _ = language_model.loader(settings)(LM_SIZES["paper"].length)
    original, coalesced, prior = mean_rows(samples.inputs, settings.global_batch_size)
    assert original == 2560 < 4437
    assert coalesced / original > 1.05 * 3533 / 4437
    assert prior / coalesced < 0.95 * 1348 / 3533
