"""Data and training of GNMT."""

from collections.abc import Sequence

import keras

import tf_sparse_strategy as tss
from examples.gnmt.model import SIZES, build_model
from examples.text import training, translation, zipf
from examples.text.settings import TextSettings


def make_model(settings: TextSettings, plan: Sequence[tuple[int, int]]) -> keras.Model:
    """The model, compiled for a run of these (steps, epochs)."""
    model = build_model(SIZES[settings.size], settings.sharded_embedding)
    model.compile(
        training.make_optimizer(settings, plan),
        loss=translation.SmoothedCrossentropy(0.1),
        metrics=[translation.Perplexity()],
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def train(settings: TextSettings, strategy: tss.SparseStrategy, callbacks=()) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    size = SIZES[settings.size]
    length = size.drawn if settings.synthetic else size.length
    samples = translation.loader(settings, size.vocabulary, length, zipf.GNMT)
    return training.train(settings, strategy, make_model, samples, length, callbacks)
