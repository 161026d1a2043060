"""The TensorFlow Model Garden's BERT for question answering, for tf_keras."""

import tensorflow as tf

from examples.bert.model import Size
from examples.common.garden import importing
from examples.text import corpus
from examples.text.tables import table


def build_model(size: Size, sharded: bool) -> tf.keras.Model:
    """From {"ids": [B, T], "segments": [B, T]} to logits [B, 2, T], as model.py's, with as many parameters.

    Args:
      size: of it.
      sharded: whether the table of words is divided over the workers.

    Raises:
      ImportError: tf-models-official is not installed.
      RuntimeError: `tf.keras` is Keras 3.
    """
    with importing():
        from official.nlp.modeling import models, networks

    def start():
        return tf.keras.initializers.TruncatedNormal(stddev=0.02)

    encoder = networks.BertEncoder(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_layers=size.layers,
        num_attention_heads=size.heads,
        max_sequence_length=size.positions,
        type_vocab_size=2,
        inner_dim=size.inner,
        output_dropout=size.dropout,
        attention_dropout=size.dropout,
        initializer=start(),
        embedding_layer=table(
            size.vocabulary, size.width, sharded, embeddings_initializer=start(), name="words"
        ),
    )
    encoder.pooler_layer.trainable = False  # which question answering has no use for, as ours
    labeler = models.BertSpanLabeler(encoder, initializer=start())
    ids, segments = (
        tf.keras.Input([None], dtype="int32", name=name) for name in ("ids", "segments")
    )
    first, last = labeler(
        {
            "input_word_ids": ids,
            "input_mask": tf.cast(tf.not_equal(ids, corpus.PADDING), tf.int32),
            "input_type_ids": segments,
        }
    )
    return tf.keras.Model({"ids": ids, "segments": segments}, tf.stack([first, last], axis=1))
