"""GNMT with eight layers of LSTMs, in Keras 3."""

import dataclasses

import keras
import tensorflow as tf

from examples.text import corpus
from examples.text.lstm import TwoBiasLSTM
from examples.text.tables import table


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model.

    Args:
      vocabulary: V, ids of either language.
      width: D, of a word's vector and of each layer.
      layers: of the encoder, and of the decoder.
      length: words of a sentence at most, its end included.
      drawn: words of a sentence where they are drawn, none of them padding.
      dropout: part of the values that training leaves out.
    """

    vocabulary: int
    width: int
    layers: int
    length: int
    drawn: int
    dropout: float


SIZES = {
    "tiny": Size(vocabulary=500, width=16, layers=2, length=12, drawn=12, dropout=0.0),
    "laptop": Size(vocabulary=6_000, width=128, layers=2, length=20, drawn=20, dropout=0.0),
    # 193,757,758 parameters. EmbRace counts 26 words of each of 128 sentences.
    "paper": Size(vocabulary=32_317, width=1_024, layers=4, length=50, drawn=26, dropout=0.2),
}


@keras.saving.register_keras_serializable(package="examples")
class NormedAttention(keras.layers.Layer):
    """Bahdanau's attention with a normed vector: score = g v / |v| . tanh(W q + U k + b).

    Args:
      units: of W, U, v and b.

    Source: Bahdanau et al., ICLR 2015; the norm: TensorFlow's NMT and NVIDIA's GNMT v2.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, queries_shape, memory_shape, words_shape=None):
        """Makes W, U, v, g and b."""
        units = self.units
        self.query_kernel = self.add_weight(shape=(queries_shape[-1], units), name="query_kernel")
        self.key_kernel = self.add_weight(shape=(memory_shape[-1], units), name="key_kernel")
        start = keras.initializers.RandomUniform(-0.1, 0.1)
        self.vector = self.add_weight(shape=(units,), initializer=start, name="vector")
        norm = keras.initializers.Constant(units**-0.5)
        self.norm = self.add_weight(shape=(1,), initializer=norm, name="norm")
        self.bias = self.add_weight(shape=(units,), initializer="zeros", name="bias")

    def call(self, queries, memory, words):
        """Means [B, T, D] of memory [B, S, D], over `words` [B, S] that are none of padding, by T queries."""
        queries = tf.matmul(queries, self.query_kernel)[:, :, None]
        keys = tf.matmul(memory, self.key_kernel)[:, None]
        vector = self.norm * self.vector / tf.norm(self.vector)
        scores = tf.linalg.matvec(tf.tanh(queries + keys + self.bias), vector)
        scores = tf.where(words[:, None], scores, scores.dtype.min)
        return tf.matmul(tf.nn.softmax(scores), memory)

    def compute_output_shape(self, queries_shape, memory_shape, words_shape=None):
        """[B, T, D]."""
        return (*queries_shape[:-1], memory_shape[-1])

    def get_config(self):
        """The arguments of the constructor."""
        return {**super().get_config(), "units": self.units}


def build_model(size: Size, sharded: bool) -> keras.Model:
    """From {"source": [B, S], "target": [B, T]} to logits [B, T, V] of the word behind each of the target's.

    The encoder's first layer reads both ways; what attention finds for the decoder's first layer goes to all
    others; layers from the third on have shortcuts.

    Args:
      size: of it.
      sharded: whether the two tables are divided over the workers.

    Source: Wu et al., arXiv 1609.08144, in the form of NVIDIA's GNMT v2.
    """
    layers = keras.layers

    def lstm():
        return TwoBiasLSTM(size.width, return_sequences=True)

    def dropout(x):
        return layers.Dropout(size.dropout)(x)

    def vectors(ids, name):
        start = keras.initializers.RandomUniform(-0.1, 0.1)
        words = table(size.vocabulary, size.width, sharded, embeddings_initializer=start, name=name)
        return dropout(words(ids))

    source = keras.Input([None], dtype="int32", name="source")
    target = keras.Input([None], dtype="int32", name="target")
    words = keras.ops.not_equal(source, corpus.PADDING)

    x = layers.Bidirectional(lstm())(vectors(source, "source_words"), mask=words)
    memory = lstm()(dropout(x), mask=words)
    for _ in range(size.layers - 2):
        memory += lstm()(dropout(memory), mask=words)

    queries = lstm()(vectors(target, "target_words"))
    found = NormedAttention(size.width)(queries, memory, words)
    x = lstm()(dropout(layers.Concatenate()([queries, found])))
    for _ in range(size.layers - 2):
        x += lstm()(dropout(layers.Concatenate()([x, found])))
    return keras.Model(
        {"source": source, "target": target}, layers.Dense(size.vocabulary, name="output")(x)
    )
