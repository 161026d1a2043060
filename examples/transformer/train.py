"""Data and training of the Transformer."""

from collections.abc import Sequence

import tensorflow as tf

import tf_sparse_strategy as tss
from examples.text import training, translation, zipf
from examples.text.settings import TwoModelSettings
from examples.transformer import garden
from examples.transformer.model import SIZES, build_model


def make_model(settings: TwoModelSettings, plan: Sequence[tuple[int, int]]) -> tf.keras.Model:
    """The model, compiled for a run of these (steps, epochs)."""
    build = garden.build_model if settings.model == "garden" else build_model
    model = build(SIZES[settings.size], settings.sharded_embedding)
    model.compile(
        training.make_optimizer(settings, plan, beta_2=0.997, epsilon=1e-9),
        loss=translation.SmoothedCrossentropy(0.1),
        metrics=[translation.Perplexity()],
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def train(
    settings: TwoModelSettings, strategy: tss.SparseStrategy, callbacks=()
) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    size = SIZES[settings.size]
    samples = translation.loader(settings, size.vocabulary, size.length, zipf.TRANSFORMER)
    return training.train(settings, strategy, make_model, samples, size.length, callbacks)
