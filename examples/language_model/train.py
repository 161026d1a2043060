"""Data and training of the language model."""

import dataclasses
import math

import numpy as np

import tf_sparse_strategy as tss
from examples.language_model.model import SIZES, LanguageModel, Size, given
from examples.text import corpus, training, zipf
from examples.text.settings import TextSettings
from examples.text.training import Samples


def windows(documents: list[list[int]], length: int) -> Samples:
    """All words in a row, cut to pieces, with the next word of each as its label."""
    stream = np.array([id for ids in documents for id in [*ids, corpus.END]], np.int32)
    count = (len(stream) - 1) // length
    inputs, labels = stream[: count * length], stream[1 : count * length + 1]
    return Samples(inputs.reshape(count, length), labels.reshape(count, length))


def load(settings: TextSettings) -> tuple[Samples, Samples]:
    """(samples to train on, samples to test on)."""
    size = SIZES[settings.size]
    if settings.synthetic:
        law = dataclasses.replace(zipf.LM, vocabulary=size.vocabulary)
        rows = settings.global_batch_size * settings.synthetic_steps
        shape = [rows, size.length + 1]
        ids = law.draw(np.random.default_rng(settings.seed), shape)
        samples = Samples(ids[:, :-1], ids[:, 1:])
        held_out = settings.global_batch_size
        return samples, Samples(samples.inputs[:held_out], samples.labels[:held_out])
    learnt, held_out = corpus.split([corpus.tokens(text) for text in corpus.texts(settings.text)])
    words = corpus.Vocabulary(learnt, size.vocabulary)
    learnt, held_out = (
        windows([words.ids(document) for document in part], size.length)
        for part in (learnt, held_out)
    )
    return learnt, held_out


def make_model(settings: TextSettings, steps: int) -> LanguageModel:
    """The model, compiled for a run of so many steps."""
    size: Size = SIZES[settings.size]
    model = LanguageModel(size, settings.sharded_embedding, settings.seed)
    model.build((None, size.length))
    model.compile(
        training.make_optimizer(settings, steps, global_clipnorm=1.0),
        loss=given,
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def perplexity(result: training.Result) -> float:
    """Of the held-out words, by the softmax over all words."""
    return math.exp(result.held_out["loss"])


def train(settings: TextSettings, strategy: tss.SparseStrategy, callbacks=()) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    return training.train(settings, strategy, make_model, *load(settings), callbacks)
