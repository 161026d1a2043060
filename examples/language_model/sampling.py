"""Softmax over a large vocabulary: by samples for training, in pieces for testing."""

from collections.abc import Callable

import tensorflow as tf


def draw(labels: tf.Tensor, samples: int, vocabulary: int, seed: int):
    """Other words than the labels, drawn by p(id) = log(1 + 1 / (id + 1)) / log(1 + V), each once.

    Args:
      labels: [n].
      samples: S.
      vocabulary: V, the frequent words first.
      seed: with it, and the same global seed, all workers draw the same words.

    Returns:
      (ids [S], how often each is expected [S], how often each label is expected [n]).
    """
    labels = tf.cast(labels[:, None], tf.int64)
    found = tf.random.log_uniform_candidate_sampler(
        labels, num_true=1, num_sampled=samples, unique=True, range_max=vocabulary, seed=seed
    )
    ids, expected_labels, expected = (tf.stop_gradient(x) for x in found)
    return ids, expected, expected_labels[:, 0]


def sampled_losses(hidden, labels, label_rows, sampled, sampled_rows, expected, expected_labels):
    """Cross-entropy of each label among the samples, [n].

    From each logit goes the logarithm of how often the word is drawn. A row is a word's weights and its bias.

    Args:
      hidden: [n, D].
      labels: [n].
      label_rows: of the labels, [n, D+1].
      sampled: ids, [S].
      sampled_rows: of these, [S, D+1].
      expected, expected_labels: how often each is drawn, [S], [n].

    Source: Jean et al., ACL 2015; as `tf.nn.sampled_softmax_loss`, which wants the whole table.
    """
    weights, bias = label_rows[:, :-1], label_rows[:, -1]
    of_labels = tf.reduce_sum(hidden * weights, axis=1) + bias - tf.math.log(expected_labels)
    others = logits(hidden, sampled_rows) - tf.math.log(expected)
    hits = tf.cast(labels[:, None], sampled.dtype) == sampled
    others = tf.where(hits, others.dtype.min, others)
    return tf.reduce_logsumexp(tf.concat([of_labels[:, None], others], axis=1), axis=1) - of_labels


def full_losses(
    hidden, labels, rows: Callable[[tf.Tensor], tf.Tensor], vocabulary: int, piece: int = 16_384
):
    """Cross-entropy of each label among all words, [n].

    Args:
      hidden: [n, D].
      labels: [n].
      rows: from ids to rows [..., D+1].
      vocabulary: V.
      piece: so many words at a time, to bound the memory.
    """
    sums = []
    for first in range(0, vocabulary, piece):
        ids = tf.range(first, min(first + piece, vocabulary))
        with tf.control_dependencies(sums[-1:]):  # one after the other, not all at once
            sums.append(tf.reduce_logsumexp(logits(hidden, rows(ids)), axis=1))
    of_labels = rows(labels)
    of_labels = tf.reduce_sum(hidden * of_labels[:, :-1], axis=1) + of_labels[:, -1]
    return tf.reduce_logsumexp(tf.stack(sums, axis=1), axis=1) - of_labels


def logits(hidden, rows):
    """[n, S] of hidden [n, D] and rows [S, D+1]."""
    return tf.matmul(hidden, rows[:, :-1], transpose_b=True) + rows[:, -1]
