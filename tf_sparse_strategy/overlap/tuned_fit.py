"""Lets what tunes the buckets know of each call of a model's train function in Keras 3's `fit`."""

from tf_sparse_strategy import keras_callers
from tf_sparse_strategy.hooking import extended_of_model, model_of


def begin_call(original, callbacks, batch, *args, **kwargs):
    """`CallbackList.on_train_batch_begin`: tells after the callbacks."""
    original(callbacks, batch, *args, **kwargs)
    tuner, model = _tuner(callbacks)
    if tuner is not None:
        tuner.begin_call(model, is_first=batch == 0)


def end_call(original, callbacks, *args, **kwargs):
    """`CallbackList.on_train_batch_end`: tells before the callbacks, whose time is not the step's."""
    tuner, model = _tuner(callbacks)
    if tuner is not None:
        tuner.end_call(model)
    original(callbacks, *args, **kwargs)


def end_training(callbacks):
    """When `fit` ends, before the callbacks."""
    tuner, model = _tuner(callbacks)
    if tuner is not None:
        tuner.end_training(model)


def _tuner(callbacks):
    """(what tunes still, the callbacks' model); (None, None) under other strategies and outside of `fit`."""
    model = model_of(callbacks)
    extended = extended_of_model(model)
    divides = extended is not None and extended.chunked is not None
    tuner = extended.chunked.tuner_of(model) if divides else None
    # What a loop of one's own calls is not known.
    if tuner is None or tuner.is_done or not keras_callers.is_in_fit(model):
        return None, None
    return tuner, model
