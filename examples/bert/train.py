"""Data and training of BERT."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from examples.bert import garden
from examples.bert.model import SIZES, build_model
from examples.text import corpus, training, zipf
from examples.text.settings import TwoModelSettings
from examples.text.training import Samples

ASKED = 3  # words of the question from each side of the answer
LONGEST = 3  # words of an answer at most


def question(words: list[int], random: np.random.Generator):
    """A question about these words: what stands between some of them and some others?

    Returns:
      (ids: question and text, segments: 0 and 1, (first, last) place of the answer among the ids).

    Example:
      >>> ids, segments, (first, last) = question(list(range(10, 30)), np.random.default_rng(0))
      >>> ids[1:7] == [*range(ids[first] - 3, ids[first]), *range(ids[last] + 1, ids[last] + 4)]
      True
    """
    count = random.integers(1, LONGEST + 1)
    first = random.integers(ASKED, len(words) - ASKED - count + 1)
    end = first + count
    asked = [corpus.BEGIN, *words[first - ASKED : first], *words[end : end + ASKED], corpus.END]
    ids = [*asked, *words, corpus.END]
    segments = [0] * len(asked) + [1] * (len(ids) - len(asked))
    return ids, segments, (len(asked) + first, len(asked) + end - 1)


def questions(documents: list[list[int]], length: int, random: np.random.Generator) -> Samples:
    """One on each piece of a document that fills a sample of this length, or the rest of one."""
    room = max(1, length - 2 * ASKED - 3)
    pieces = [ids[i : i + room] for ids in documents for i in range(0, len(ids), room)]
    found = [question(ids, random) for ids in pieces if len(ids) >= 2 * ASKED + LONGEST]
    if not found:
        raise ValueError(
            f"samples of {length} words have no room for a question: they must have "
            f"{4 * ASKED + LONGEST + 3} at least, and some texts {2 * ASKED + LONGEST}."
        )
    ids, segments, spans = zip(*found, strict=True)
    inputs = {"ids": corpus.padded(ids, length), "segments": corpus.padded(segments, length)}
    return Samples(inputs, np.array(spans, np.int32))


def synthetic(settings: TwoModelSettings, count: int, length: int) -> Samples:
    """So many samples of which nothing can be learnt."""
    random = np.random.default_rng(settings.seed)
    law = dataclasses.replace(zipf.BERT, vocabulary=SIZES[settings.size].vocabulary)
    ids = law.draw(random, [count, length])
    segments = np.broadcast_to(np.arange(length) >= length // 8, ids.shape)
    spans = np.sort(random.integers(0, length // 3, [count, 2]))
    return Samples({"ids": ids, "segments": segments.astype(np.int32)}, spans.astype(np.int32))


def loader(settings: TwoModelSettings) -> Callable[[int], tuple[Samples, Samples]]:
    """What gives (samples to train on, samples to test on), of a length."""
    batch = settings.global_batch_size
    if settings.synthetic:
        counts = (batch * settings.synthetic_steps, batch)
        return lambda length: tuple(synthetic(settings, count, length) for count in counts)
    learnt, held_out = corpus.split([corpus.tokens(text) for text in corpus.texts(settings.text)])
    words = corpus.Vocabulary(learnt, SIZES[settings.size].vocabulary)
    parts = [[words.ids(document) for document in part] for part in (learnt, held_out)]

    def samples(length):
        random = np.random.default_rng(settings.seed)
        return tuple(questions(part, length, random) for part in parts)

    return samples


def make_model(settings: TwoModelSettings, plan: Sequence[tuple[int, int]]) -> tf.keras.Model:
    """The model, compiled for a run of these (steps, epochs)."""
    build = garden.build_model if settings.model == "garden" else build_model
    model = build(SIZES[settings.size], settings.sharded_embedding)
    model.compile(
        training.make_optimizer(settings, plan),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def train(
    settings: TwoModelSettings, strategy: tss.SparseStrategy, callbacks=()
) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    length = SIZES[settings.size].length
    return training.train(settings, strategy, make_model, loader(settings), length, callbacks)
