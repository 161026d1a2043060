"""Data and training of GNMT."""

import keras

import tf_sparse_strategy as tss
from examples.gnmt.model import SIZES, build_model
from examples.text import training, translation, zipf
from examples.text.settings import TextSettings


def make_model(settings: TextSettings, steps: int) -> keras.Model:
    """The model, compiled for a run of so many steps."""
    model = build_model(SIZES[settings.size], settings.sharded_embedding)
    model.compile(
        training.make_optimizer(settings, steps, global_clipnorm=5.0),
        loss=translation.SmoothedCrossentropy(0.1),
        metrics=[translation.Perplexity()],
        jit_compile=False,  # XLA compiles no lookup in a sharded table
    )
    return model


def train(settings: TextSettings, strategy: tss.SparseStrategy, callbacks=()) -> training.Result:
    """Trains and tests the model; see `training.train`."""
    size = SIZES[settings.size]
    samples = translation.load(settings, size.vocabulary, size.length, zipf.GNMT)
    return training.train(settings, strategy, make_model, *samples, callbacks)
