"""The Transformer, in Keras 3, normalized before each sublayer."""

import dataclasses
import math

import keras
import tensorflow as tf

from examples.text import corpus
from examples.text.tables import table


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model.

    Args:
      vocabulary: V, ids of either language.
      width: D, of a word's vector.
      inner: width within the feed-forward layers.
      heads: of attention.
      layers: of the encoder, and of the decoder.
      length: words of a sentence at most, its end included.
      dropout: part of the values that training leaves out.
    """

    vocabulary: int
    width: int
    inner: int
    heads: int
    layers: int
    length: int
    dropout: float


SIZES = {
    "tiny": Size(vocabulary=500, width=16, inner=32, heads=2, layers=1, length=12, dropout=0.0),
    "laptop": Size(
        vocabulary=6_000, width=128, inner=512, heads=4, layers=2, length=20, dropout=0.0
    ),
    # 279,851,008 parameters.
    "paper": Size(
        vocabulary=33_712, width=1_024, inner=4_096, heads=16, layers=6, length=90, dropout=0.1
    ),
}


@keras.saving.register_keras_serializable(package="examples")
class Positions(keras.layers.Layer):
    """sqrt(D) times vectors [B, T, D], and sines and cosines of the place, side by side.

    Source: Vaswani et al., NeurIPS 2017, sections 3.4 and 3.5.
    """

    def call(self, vectors):
        """The sums."""
        width = vectors.shape[-1]
        half = width // 2
        rates = tf.exp(-math.log(10_000.0) / half * tf.range(half, dtype=tf.float32))
        places = tf.range(tf.shape(vectors)[1], dtype=tf.float32)
        angles = places[:, None] * rates
        waves = tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
        return vectors * math.sqrt(width) + tf.cast(waves, vectors.dtype)


def build_model(size: Size, sharded: bool) -> keras.Model:
    """From {"source": [B, S], "target": [B, T]} to logits [B, T, V] of the word behind each of the target's.

    A tied table would get a dense gradient from the output layer. These three are not tied, so that two have
    gradients that are rows.

    Args:
      size: of it.
      sharded: whether the two are divided over the workers.

    Source: Vaswani et al., NeurIPS 2017; "big", as fairseq's transformer_wmt_en_de_big_t2t.
    """
    layers = keras.layers

    def dropout(x):
        return layers.Dropout(size.dropout)(x)

    def norm(x):
        return layers.LayerNormalization(epsilon=1e-6)(x)

    def vectors(ids, name):
        start = keras.initializers.RandomNormal(stddev=size.width**-0.5)
        words = table(size.vocabulary, size.width, sharded, embeddings_initializer=start, name=name)
        return dropout(Positions()(words(ids)))

    def attention(x, memory, **masks):
        layer = layers.MultiHeadAttention(
            size.heads, size.width // size.heads, dropout=size.dropout, use_bias=False
        )
        return layer(x, memory, **masks)

    def feed_forward(x):
        return layers.Dense(size.width)(layers.Dense(size.inner, activation="relu")(x))

    source = keras.Input([None], dtype="int32", name="source")
    target = keras.Input([None], dtype="int32", name="target")
    words = keras.ops.expand_dims(keras.ops.not_equal(source, corpus.PADDING), axis=1)  # [B, 1, S]

    memory = vectors(source, "source_words")
    for _ in range(size.layers):
        normed = norm(memory)
        memory += dropout(attention(normed, normed, attention_mask=words))
        memory += dropout(feed_forward(norm(memory)))
    memory = norm(memory)

    x = vectors(target, "target_words")
    for _ in range(size.layers):
        normed = norm(x)
        x += dropout(attention(normed, normed, use_causal_mask=True))
        x += dropout(attention(norm(x), memory, attention_mask=words))
        x += dropout(feed_forward(norm(x)))
    logits = layers.Dense(size.vocabulary, use_bias=False, name="output")(norm(x))
    return keras.Model({"source": source, "target": target}, logits)
