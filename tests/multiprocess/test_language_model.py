"""The language model on two workers: it learns real text, with whole tables too."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from examples.common import strategy as strategies
from examples.language_model import config, train
from examples.language_model.model import SIZES
from tests import small_texts
from tests.multiprocess import cut_runs
from tests.thorough import thorough, thorough_if

TINY = dataclasses.replace(
    config.RECIPES["laptop"], size="tiny", epochs=2, global_batch_size=32, learning_rate=3e-2
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A run on the language reference's first lines."""
    directory = tmp_path_factory.mktemp("lm")
    text = small_texts.write(directory)["lines"]
    return dataclasses.replace(TINY, text=text, output_dir=str(directory / "logs"))


def trained(settings, callbacks=()):
    return train.train(settings, strategies.start(settings), callbacks)


def unigram_perplexity(learnt, held_out):
    """Of the held-out words by their frequency in the others, each counted once more."""
    counts = collections.Counter(learnt.labels.ravel().tolist())
    total = learnt.labels.size + SIZES["tiny"].vocabulary
    logs = [math.log((counts[word] + 1) / total) for word in held_out.labels.ravel().tolist()]
    return math.exp(-np.mean(logs))


@pytest.fixture(scope="module")
def run(settings, comm):
    return trained(settings)


def test_it_learns_more_than_frequencies_and_workers_agree(run, settings, comm):
    perplexity = train.perplexity(run)
    assert perplexity < 0.85 * unigram_perplexity(*train.loader(settings)(SIZES["tiny"].length))
    everyone = comm.all_gather(tf.constant([perplexity], tf.float64)).numpy()
    np.testing.assert_array_equal(everyone, perplexity)


def test_whole_tables_learn_the_same(run, settings):
    whole = trained(dataclasses.replace(settings, sharded_embedding=False))
    assert whole.history["val_loss"] == pytest.approx(run.history["val_loss"], rel=1e-3)


@thorough
def test_a_run_that_was_cut_off_goes_on(settings, shared_tmp):
    """Not to the bit: TensorFlow's sampler of words begins anew."""
    whole, resumed = cut_runs.whole_and_resumed(train.train, settings, shared_tmp)
    assert len(resumed.history["loss"]) == 1
    assert train.perplexity(resumed) == pytest.approx(train.perplexity(whole), rel=0.05)
    assert resumed.history["loss"][0] == pytest.approx(whole.history["loss"][1], rel=0.05)


CASES = [(True, "none"), (False, "none"), (False, "dear")]


@pytest.mark.parametrize("case", thorough_if(lambda case: case[1] == "none", CASES), ids=str)
def test_rows_of_the_input_table_are_delayed(case, run, settings):
    """Not the output table's, which are known within the step; nor any beside one norm of all gradients."""
    clips, overlap = case
    at_once = settings if clips else dataclasses.replace(settings, clip=None)
    delayed = dataclasses.replace(at_once, delay_rows=True, overlap=overlap)
    strategy = strategies.start(delayed, delay_rows=True)
    perplexity = train.perplexity(train.train(delayed, strategy))
    places = strategy.extended.collectives.sites.sites()
    calls = [calls for place, (calls, *_) in places if place.startswith("embedding_delayed")]
    assert any(calls) != clips
    assert (strategy.extended.chunked is not None) == (overlap == "dear")
    assert perplexity == pytest.approx(train.perplexity(run if clips else trained(at_once)), rel=1e-3)
