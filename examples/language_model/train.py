"""Data and training of the language model."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

import tf_sparse_strategy as tss
from examples.language_model.model import SIZES, LanguageModel, build_model, given
from examples.text import corpus, training, zipf
from examples.text.settings import TextSettings
from examples.text.training import Samples


def windows(documents: list[list[int]], length: int) -> Samples:
    """All words in a row, cut to pieces, with the next word of each as its label."""
    stream = np.array([id for ids in documents for id in [*ids, corpus.END]], np.int32)
    count = (len(stream) - 1) // length
    inputs, labels = stream[: count * length], stream[1 : count * length + 1]
    return Samples(inputs.reshape(count, length), labels.reshape(count, length))


def loader(settings: TextSettings) -> Callable[[int], tuple[Samples, Samples]]:
    """What gives (samples to train on, samples to test on), of a length."""
    vocabulary = SIZES[settings.size].vocabulary
    if settings.synthetic:
        return lambda length: synthetic(settings, length, vocabulary)
    learnt, held_out = corpus.split([corpus.tokens(text) for text in corpus.texts(settings.text)])
    words = corpus.Vocabulary(learnt, vocabulary)
    parts = [[words.ids(document) for document in part] for part in (learnt, held_out)]
    return lambda length: tuple(windows(part, length) for part in parts)


def synthetic(settings: TextSettings, length: int, vocabulary: int) -> tuple[Samples, Samples]:
    """Samples of which nothing can be learnt; the first of them are those to test on."""
    law = dataclasses.replace(zipf.LM, vocabulary=vocabulary)
    shape = [settings.global_batch_size * settings.synthetic_steps, length + 1]
    ids = law.draw(np.random.default_rng(settings.seed), shape)
    inputs, labels, held_out = ids[:, :-1], ids[:, 1:], settings.global_batch_size
    return Samples(inputs, labels), Samples(inputs[:held_out], labels[:held_out])


def make_model(settings: TextSettings, plan: Sequence[tuple[int, int]]) -> LanguageModel:
    """The model, compiled for a run of these (steps, epochs)."""
    model = build_model(SIZES[settings.size], settings.sharded_embedding, settings.seed)
    model.compile(
        training.make_optimizer(settings, plan),
        loss=given,
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def perplexity(result: training.Result) -> float:
    """Of the held-out words, by the softmax over all words."""
    return float(np.exp(result.held_out["loss"]))  # infinite where the model diverged


def train(settings: TextSettings, strategy: tss.SparseStrategy, callbacks=()) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    length = SIZES[settings.size].length
    return training.train(settings, strategy, make_model, loader(settings), length, callbacks)
