"""Text, words and their numbers; settings and arrays of the recipes for text."""

import dataclasses

import numpy as np
import pytest

from examples.language_model import config, train
from examples.text import corpus, training, translation
from examples.text.training import Samples
from examples.text.zipf import Zipf

SETTINGS = dataclasses.replace(config.RECIPES["laptop"], size="tiny")


def test_docstrings_are_english_in_a_fixed_order():
    found = corpus.docstrings()
    words = [word for text in found for word in corpus.tokens(text)]
    assert len(words) > 200_000
    assert words.count("the") > 0.02 * len(words)
    assert found[0] == __import__("__future__").__doc__.strip()


def test_frequent_words_have_small_numbers():
    documents = [["b", "a", "b"], ["c", "a", "b"]]
    words = corpus.Vocabulary(documents, size=6)
    assert words.ids(["b", "a", "c", "d"]) == [4, 5, corpus.UNKNOWN, corpus.UNKNOWN]


def test_rows_are_cut_and_padded():
    np.testing.assert_array_equal(corpus.padded([[4, 5, 6], [], [7]], 2), [[4, 5], [0, 0], [7, 0]])


def test_every_twentieth_is_held_out():
    learnt, held_out = corpus.split(range(45))
    assert held_out == [0, 20, 40] and sorted(learnt + held_out) == list(range(45))


def test_windows_are_the_text_and_what_follows():
    samples = train.windows([[5, 6, 7], [8], [9, 10]], length=2)
    np.testing.assert_array_equal(samples.inputs, [[5, 6], [7, 3], [8, 3], [9, 10]])
    np.testing.assert_array_equal(samples.labels, [[6, 7], [3, 8], [3, 9], [10, 3]])


def test_pairs_of_a_file_are_read_and_written(tmp_path):
    (tmp_path / "text").write_text("one two\tEins zwei\tCC-BY 2.0\nno translation\n" + "x y\ty x\n" * 20)
    settings = dataclasses.replace(SETTINGS, text=str(tmp_path / "text"))
    assert translation.pairs(settings, 4)[:2] == [
        (["one", "two"], ["eins", "zwei"]),
        (["x", "y"], ["y", "x"]),
    ]
    learnt, held_out = translation.loader(settings, 9, 4, law=None)(4)
    assert (len(learnt), len(held_out)) == (19, 2)
    # Both languages have x and y, which are as frequent: x is 4, y is 5.
    np.testing.assert_array_equal(learnt.inputs["source"][0], [4, 5, 0, 0])
    np.testing.assert_array_equal(learnt.inputs["target"][0], [corpus.BEGIN, 5, 4, 0])
    np.testing.assert_array_equal(learnt.labels[0], [5, 4, corpus.END, 0])
    short, _ = translation.loader(settings, 9, 4, law=None)(3)
    assert len(short) == 19 and short.labels.shape[1] == 3
    with pytest.raises(ValueError, match="text=.* must have lines of two parts"):
        translation.loader(settings, 9, 2, law=None)


def test_synthetic_words_fill_an_epoch():
    settings = dataclasses.replace(SETTINGS, synthetic=True, synthetic_steps=3)
    batch = settings.global_batch_size
    learnt, held_out = train.loader(settings)(8)
    assert learnt.inputs.shape == (3 * batch, 8) and len(held_out) == batch
    np.testing.assert_array_equal(learnt.inputs[:, 1:], learnt.labels[:, :-1])
    learnt, held_out = translation.loader(settings, 50, 9, Zipf(9, exponent=1.0))(6)
    assert learnt.inputs["source"].shape == (3 * batch, 6) and len(held_out) == batch
    assert learnt.labels.max() < 50


def test_batches_are_the_samples_of_their_rows():
    samples = Samples({"a": np.arange(6), "b": -np.arange(6)}, 10 * np.arange(6))
    [(inputs, labels), _] = training.batches(samples, np.array([5, 0, 3]), 2)
    assert list(inputs["a"]) == [5, 0] and list(inputs["b"]) == [-5, 0]
    assert list(labels) == [50, 0]


def test_a_rate_that_could_not_fall_is_refused():
    """By a linear schedule it would be 0 / 0 in the end; the others have a shape without a fall."""
    for schedule in ("linear", "inverse_root", "halving"):
        settings = dataclasses.replace(SETTINGS, warm_up_steps=10, schedule=schedule)
        rates = [float(training.make_rate(settings, [(11, 1)])(step)) for step in range(11)]
        assert all(rates[i] < rates[i + 1] for i in range(5)) and max(rates) <= settings.learning_rate * 1.001
        if schedule == "linear":
            assert rates[9] == pytest.approx(settings.learning_rate) and rates[10] < 0.02 * rates[9]
            with pytest.raises(ValueError, match="warm_up_steps=10 must be less than 10"):
                training.make_rate(settings, [(10, 1)])


@pytest.mark.parametrize(
    "bad",
    [
        {"pto": "on"},
        {"pto": "on", "optimizer": "adam"},
        {"optimizer": "lamb"},
        {"phases": ((5, 1),)},
        {"phases": ((0, 2),)},
        {"phases": ()},
        {"clip": 0.0},
        {"schedule": "cosine"},
        {"warm_up_steps": 0},
        {"synthetic": True, "text": "x"},
        {"synthetic": True, "check": True},
        {"check": True, "goal": None},
        {"goal": 0.0},
        {"epochs": 0},
        {"size": "huge"},
        {"delay_rows": True, "sharded_embedding": False},
    ],
    ids=str,
)
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(SETTINGS, **bad)
