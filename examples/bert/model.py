"""BERT with a layer that marks the answer, in Keras 3."""

import dataclasses

import keras

from examples.text import corpus
from examples.text.tables import table


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model.

    Args:
      vocabulary: V, ids.
      width: D, of a word's vector.
      inner: width within the feed-forward layers.
      heads: of attention.
      layers: of attention and feed-forward layers, one each.
      positions: places that have a vector.
      length: ids of a sample, the question and the text; `positions` at most.
      dropout: part of the values that training leaves out.
    """

    vocabulary: int
    width: int
    inner: int
    heads: int
    layers: int
    positions: int
    length: int
    dropout: float


SIZES = {
    "tiny": Size(
        vocabulary=500,
        width=16,
        inner=32,
        heads=2,
        layers=1,
        positions=24,
        length=24,
        dropout=0.0,
    ),
    "laptop": Size(
        vocabulary=6_000,
        width=128,
        inner=512,
        heads=4,
        layers=2,
        positions=48,
        length=48,
        dropout=0.0,
    ),
    # 109,488,386 parameters. The published vocabulary has 30,522; six more make it a multiple of 64.
    "paper": Size(
        vocabulary=30_528,
        width=768,
        inner=3_072,
        heads=12,
        layers=12,
        positions=512,
        length=384,
        dropout=0.1,
    ),
}


def start():
    """The initial values of all matrices."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="examples")
class LearntPositions(keras.layers.Layer):
    """Adds the vector of the place to vectors [B, T, D].

    Args:
      positions: places that have one.
    """

    def __init__(self, positions: int, **kwargs):
        super().__init__(**kwargs)
        self.positions = positions

    def build(self, input_shape):
        """Makes the vectors."""
        shape = (self.positions, input_shape[-1])
        self.vectors = self.add_weight(shape=shape, initializer=start(), name="vectors")

    def call(self, words):
        """The sums."""
        return words + self.vectors[: keras.ops.shape(words)[1]]

    def get_config(self):
        """The arguments of the constructor."""
        return {**super().get_config(), "positions": self.positions}


def build_encoder(size: Size, sharded: bool) -> keras.Model:
    """From {"ids": [B, T], "segments": [B, T]} to {"sequence": [B, T, D], "pooled": [B, D]}.

    Args:
      size: of it.
      sharded: whether the table of words is divided over the workers.

    Source: Devlin et al., NAACL 2019.
    """
    layers = keras.layers

    def dropout(x):
        return layers.Dropout(size.dropout)(x)

    def norm(x):
        return layers.LayerNormalization(epsilon=1e-12)(x)

    def dense(width, **kwargs):
        return layers.Dense(width, kernel_initializer=start(), **kwargs)

    def attention(x):
        layer = layers.MultiHeadAttention(
            size.heads,
            size.width // size.heads,
            dropout=size.dropout,
            kernel_initializer=start(),
        )
        return layer(x, x, attention_mask=words)

    ids = keras.Input([None], dtype="int32", name="ids")
    segments = keras.Input([None], dtype="int32", name="segments")
    words = keras.ops.expand_dims(keras.ops.not_equal(ids, corpus.PADDING), axis=1)  # [B, 1, T]

    rows = table(size.vocabulary, size.width, sharded, embeddings_initializer=start(), name="words")
    x = rows(ids)
    # A product, not a lookup: the gradient of two rows is dense.
    x += dense(size.width, use_bias=False, name="segment")(keras.ops.one_hot(segments, 2))
    x = dropout(norm(LearntPositions(size.positions, name="position")(x)))
    for _ in range(size.layers):
        x = norm(x + dropout(attention(x)))
        x = norm(x + dropout(dense(size.width)(dense(size.inner, activation="gelu")(x))))
    # For checkpoints that have it: question answering has no use for it.
    pooled = dense(size.width, activation="tanh", trainable=False, name="pooler")(x[:, 0])
    return keras.Model(
        {"ids": ids, "segments": segments}, {"sequence": x, "pooled": pooled}, name="encoder"
    )


def build_model(size: Size, sharded: bool) -> keras.Model:
    """From {"ids", "segments"}, as the encoder, to logits [B, 2, T] of the answer's first and last place."""
    encoder = build_encoder(size, sharded)
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in ("ids", "segments")}
    # In float32, as 16 bits give many places one logit, and Keras's accuracy counts places in their dtype.
    ends = keras.layers.Dense(2, kernel_initializer=start(), dtype="float32", name="ends")
    ends = ends(encoder(inputs)["sequence"])
    return keras.Model(inputs, keras.ops.transpose(ends, [0, 2, 1]))
