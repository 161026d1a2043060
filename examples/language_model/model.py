"""An LSTM between two tables: words in, words out."""

import dataclasses

import keras
import tensorflow as tf

from examples.language_model import sampling
from examples.text.lstm import TwoBiasLSTM
from examples.text.tables import table


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model.

    Args:
      vocabulary: V, words.
      width: D, of a word's vector.
      units: of the LSTM.
      samples: words that a place's softmax is over, besides its label.
      length: words that are read at once.
      dropout: part of the values that training leaves out.
    """

    vocabulary: int
    width: int
    units: int
    samples: int
    length: int
    dropout: float


SIZES = {
    "tiny": Size(vocabulary=500, width=16, units=24, samples=64, length=8, dropout=0.0),
    "laptop": Size(vocabulary=6_000, width=128, units=256, samples=1_024, length=20, dropout=0.0),
    # 835,344,767 parameters: 2 V (D + 1/2) in the tables, the rest in the LSTM and behind it.
    "paper": Size(
        vocabulary=793_471, width=512, units=2_048, samples=8_192, length=20, dropout=0.01
    ),
}


def given(labels, losses):
    """The loss of a model that has computed its losses itself."""
    del labels
    return losses


def build_model(size: Size, sharded: bool, seed: int = 0) -> "LanguageModel":
    """From ids [B, T] to vectors [B, T, D] of what follows each, with a second table for its loss.

    The tables are not tied, and the gradients of both are rows. The last column of a word's output row is its
    bias: one lookup gets both.

    Args:
      size: of it.
      sharded: whether the tables are divided over the workers.
      seed: of the sampled words.

    Source: the LM of EmbRace (Li et al., ICPP 2022), table 1: Jozefowicz et al., arXiv 1602.02410.
    """
    words = table(size.vocabulary, size.width, sharded, name="words")
    dropout = keras.layers.Dropout(size.dropout)
    ids = keras.Input([None], dtype="int32", name="ids")
    x = TwoBiasLSTM(size.units, return_sequences=True)(dropout(words(ids)))
    vectors = keras.layers.Dense(size.width)(dropout(x))
    candidates = table(size.vocabulary, size.width + 1, sharded, name="candidates")
    candidates.build((None, None))
    return LanguageModel(ids, vectors, candidates, size, seed)


class LanguageModel(keras.Model):
    """The next word at each place; trained on sampled words, tested on all.

    Args:
      inputs, outputs: the ids and the vectors, symbolically.
      candidates: the table of the softmax.
      size: of the model.
      seed: of the sampled words.
    """

    def __init__(self, inputs, outputs, candidates: keras.layers.Layer, size: Size, seed: int):
        super().__init__(inputs=inputs, outputs=outputs)
        self.candidates, self.size, self.seed = candidates, size, seed

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The mean over all places; called by Keras."""
        hidden = tf.cast(tf.reshape(y_pred, [-1, self.size.width]), tf.float32)
        labels = tf.reshape(y, [-1])
        losses = self._sampled(hidden, labels) if training else self._full(hidden, labels)
        losses = tf.reshape(losses, tf.shape(y))
        return super().compute_loss(x, y, losses, sample_weight, training)

    def _rows(self, ids):
        return tf.cast(self.candidates(ids), tf.float32)

    def _sampled(self, hidden, labels):
        size = self.size
        sampled, expected, expected_labels = sampling.draw(
            labels, size.samples, size.vocabulary, self.seed
        )
        count = tf.size(labels)
        rows = self._rows(tf.concat([tf.cast(labels, sampled.dtype), sampled], axis=0))
        return sampling.sampled_losses(
            hidden, labels, rows[:count], sampled, rows[count:], expected, expected_labels
        )

    def _full(self, hidden, labels):
        return sampling.full_losses(hidden, labels, self._rows, self.size.vocabulary)
