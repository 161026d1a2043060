"""From sentences to sentences: data, loss and metric of models that read one and write another."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from examples.text import corpus
from examples.text.settings import TextSettings
from examples.text.training import Samples
from examples.text.zipf import Zipf


def pairs(settings: TextSettings, length: int) -> list[tuple[list[str], list[str]]]:
    """(words, words of the translation), all shorter than `length`.

    Of a text file, the parts of each line before and behind the first tab (further ones, e.g. a licence, are
    not read). Of the docstrings, whose only translation
    at hand has the words in reverse order, sentences and that.
    """
    if settings.text is not None:
        halves = [[*line.split("\t"), ""][:2] for line in corpus.texts(settings.text)]
        found = [(corpus.tokens(source), corpus.tokens(target)) for source, target in halves]
    else:
        written = [s for text in corpus.docstrings() for s in corpus.sentences(text)]
        found = [(words, words[::-1]) for words in map(corpus.tokens, written)]
    return [(a, b) for a, b in found if 0 < len(a) < length and 0 < len(b) < length]


def samples(sources: list[list[int]], targets: list[list[int]], length: int) -> Samples:
    """The model reads a source and the target's words before a place, and writes the word at that place."""
    before = corpus.padded([[corpus.BEGIN, *ids] for ids in targets], length)
    labels = corpus.padded([[*ids, corpus.END] for ids in targets], length)
    return Samples({"source": corpus.padded(sources, length), "target": before}, labels)


def loader(
    settings: TextSettings, vocabulary: int, longest: int, law: Zipf
) -> Callable[[int], tuple[Samples, Samples]]:
    """What gives (samples to train on, samples to test on), of sentences up to a length.

    Args:
      settings: of the run.
      vocabulary: V, ids of either language.
      longest: length of a sentence at most, its end included; among sentences up to it words are counted.
      law: of the words where they are synthetic.
    """
    if settings.synthetic:
        law = dataclasses.replace(law, vocabulary=vocabulary)
        return lambda length: synthetic(settings, length, law)
    learnt, held_out = corpus.split(pairs(settings, longest))
    if not learnt:
        raise ValueError(
            f"text={settings.text!r} must have lines of two parts with a tab between them, each of 1 to "
            f"{longest - 1} words; none is."
        )
    languages = [corpus.Vocabulary(side, vocabulary) for side in zip(*learnt, strict=True)]

    def of_length(part, length):
        short = [pair for pair in part if max(map(len, pair)) < length]
        sides = [[words.ids(pair[side]) for pair in short] for side, words in enumerate(languages)]
        return samples(*sides, length)

    return lambda length: (of_length(learnt, length), of_length(held_out, length))


def synthetic(settings: TextSettings, length: int, law: Zipf) -> tuple[Samples, Samples]:
    """Samples of which nothing can be learnt; the first of them are those to test on."""
    count = settings.global_batch_size * settings.synthetic_steps
    source, target, labels = law.draw(np.random.default_rng(settings.seed), [3, count, length])
    held_out = settings.global_batch_size
    return (
        Samples({"source": source, "target": target}, labels),
        Samples({"source": source[:held_out], "target": target[:held_out]}, labels[:held_out]),
    )


@tf.keras.utils.register_keras_serializable(package="examples")
class SmoothedCrossentropy(tf.keras.losses.Loss):
    """Cross-entropy by ids, 0 where the label is padding.

    The mean is over all places, padding too, so that it does not depend on which worker has which sentence.

    Args:
      smoothing: part of each label that is spread over the whole vocabulary.
    """

    def __init__(self, smoothing: float, name: str = "smoothed_crossentropy", **kwargs):
        super().__init__(name=name, **kwargs)
        self.smoothing = smoothing

    def call(self, y_true, y_pred):
        """Per place [B, T], of labels [B, T] and logits [B, T, V]."""
        logs = tf.nn.log_softmax(tf.cast(y_pred, tf.float32))
        labels = tf.cast(y_true, tf.int32)
        of_labels = tf.gather(logs, labels, batch_dims=2)
        everywhere = tf.reduce_mean(logs, axis=-1)
        losses = -(1 - self.smoothing) * of_labels - self.smoothing * everywhere
        return tf.where(labels == corpus.PADDING, 0.0, losses)

    def get_config(self):
        """The arguments of the constructor."""
        return {**super().get_config(), "smoothing": self.smoothing}


@tf.keras.utils.register_keras_serializable(package="examples")
class Perplexity(tf.keras.metrics.Mean):
    """exp of the mean cross-entropy of the words, padding left out."""

    def __init__(self, name: str = "perplexity", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, labels, logits, sample_weight=None):
        """Adds labels [B, T] and their logits [B, T, V]."""
        del sample_weight  # tf_keras passes None
        labels = tf.cast(labels, tf.int32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
        super().update_state(losses, tf.cast(labels != corpus.PADDING, tf.float32))

    def result(self):
        """So far."""
        return tf.exp(super().result())
