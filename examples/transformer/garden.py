"""The TensorFlow Model Garden's Transformer, for tf_keras, its three tables not tied."""

import math

import tensorflow as tf

from examples.common.garden import importing
from examples.text import corpus
from examples.text.tables import table
from examples.transformer.model import Size


def build_model(size: Size, sharded: bool) -> tf.keras.Model:
    """From {"source": [B, S], "target": [B, T]} to logits [B, T, V], as model.py's, with as many parameters.

    The Model Garden's own `Seq2SeqTransformer` ties its one table to the output, so that its gradient is
    dense: here stand its encoder, its decoder and its positions between tables of ours.

    Args:
      size: of it.
      sharded: whether the tables that are looked up are divided over the workers.

    Raises:
      ImportError: tf-models-official is not installed.
      RuntimeError: `tf.keras` is Keras 3.
    """
    with importing():
        from official.nlp.modeling.layers import RelativePositionEmbedding
        from official.nlp.modeling.models import seq2seq_transformer
    layers = tf.keras.layers

    def vectors(ids, name):
        start = tf.keras.initializers.RandomNormal(stddev=size.width**-0.5)
        words = table(size.vocabulary, size.width, sharded, embeddings_initializer=start, name=name)
        x = words(ids) * math.sqrt(size.width)
        x += tf.cast(RelativePositionEmbedding(hidden_size=size.width)(x), x.dtype)
        return layers.Dropout(size.dropout)(x)

    shape = {
        "num_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "dropout_rate": size.dropout,
        "attention_dropout_rate": size.dropout,
    }
    encoder = seq2seq_transformer.TransformerEncoder(**shape)
    decoder = seq2seq_transformer.TransformerDecoder(**shape)
    source = tf.keras.Input([None], dtype="int32", name="source")
    target = tf.keras.Input([None], dtype="int32", name="target")
    words = tf.cast(tf.not_equal(source, corpus.PADDING), tf.float32)[:, None, :]  # [B, 1, S]
    read = tf.ones_like(source, tf.float32)[:, :, None] * words  # [B, S, S]
    written = tf.ones_like(target, tf.float32)[:, :, None]  # [B, T, 1]
    before = tf.linalg.band_part(written * tf.transpose(written, [0, 2, 1]), -1, 0)  # [B, T, T]

    memory = encoder(vectors(source, "source_words"), attention_mask=read)
    x = decoder(
        vectors(target, "target_words"),
        memory,
        self_attention_mask=before,
        cross_attention_mask=written * words,
    )
    logits = layers.Dense(size.vocabulary, use_bias=False, name="output")(x)
    return tf.keras.Model({"source": source, "target": target}, logits)
