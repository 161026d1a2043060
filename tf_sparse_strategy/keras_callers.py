"""Which part of Keras is asking, told from who calls and what is called; what it does in private.

tf.distribute's hooks do not say for whom they are called, and not all callers can be served alike.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_KERAS_PACKAGES = ("keras.src", "tf_keras.src")
_OPTIMIZERS = ("keras.src.optimizers.", "tf_keras.src.optimizers.", "tf_keras.src.mixed_precision.")
_CONSUMERS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def _callers():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame) -> str:
    return frame.f_globals.get("__name__", "")


def consumer() -> str | None:
    """Which method of Keras's models is asking for a distributed dataset: one of `_CONSUMERS`, or None.

    None also when the user's own code asks, be it in a callback of `fit`: only Keras's own steps are passed
    a batch unopened.
    """
    ours_and_tensorflow = ("tf_sparse_strategy", "tensorflow")
    asking = itertools.dropwhile(
        lambda frame: _module(frame).startswith(ours_and_tensorflow), _callers()
    )
    # Our hooks stand between Keras's functions.
    in_keras = itertools.takewhile(
        lambda frame: _module(frame).startswith((*_KERAS_PACKAGES, "tf_sparse_strategy")), asking
    )
    names = (frame.f_code.co_name for frame in in_keras)
    return next((name for name in names if name in _CONSUMERS), None)


def without_autocast() -> contextlib.AbstractContextManager:
    """While this lasts, variables of Keras 3 are not cast, even within a layer that computes in 16 bits."""
    from keras.src.backend.common.variables import AutocastScope

    return AutocastScope(None)


def is_in_fit(model: Any = None) -> bool:
    """Whether a `fit` of `model`, of any by default, has called: either Keras's, also through callbacks."""
    return any(
        frame.f_code.co_name == "fit"
        and model in (None, frame.f_locals.get("self"))
        and _is_kerass(frame)
        for frame in _callers()
    )


def _is_kerass(frame) -> bool:
    return _module(frame).startswith(_KERAS_PACKAGES)


def steps_per_call(model: Any) -> int:
    """How many steps a call of a model's train function makes, of either Keras."""
    number = getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", 1)
    return int(number.numpy() if tf.is_tensor(number) else number)


def trained_model(fn: Callable) -> Any:
    """The model of Keras 3 whose `train_step`, Keras's own, `fn` is; None if it is anything else."""
    trainer = sys.modules.get("keras.src.backend.tensorflow.trainer")
    is_kerass = trainer and getattr(fn, "__func__", None) is trainer.TensorFlowTrainer.train_step
    return fn.__self__ if is_kerass else None


def stateless_value(variable: Any) -> Any:
    """What `stateless_call` of Keras 3 has been given for `variable`; None outside of one."""
    module = sys.modules.get("keras.src.backend.common.stateless_scope")
    scope = module and module.get_stateless_scope()
    return scope and scope.get_current_value(variable)


def is_stateless() -> bool:
    """Whether Keras 3 calls layers without writing to their variables."""
    module = sys.modules.get("keras.src.backend.common.stateless_scope")
    return module is not None and module.in_stateless_scope()


def global_seed_state(make: bool = False) -> Any:
    """The variable by which Keras 3 draws what has no seed of its own, or None."""
    module = sys.modules.get("keras.src.random.seed_generator")
    if module is None:
        return None
    if make:
        return module.global_seed_generator().state
    generator = module.global_state.get_global_attribute(module.GLOBAL_SEED_GENERATOR)
    return generator and generator.state


def forget_global_seed_state() -> None:
    """Lets Keras 3 make it anew when it needs it."""
    module = sys.modules.get("keras.src.random.seed_generator")
    if module is not None:
        module.global_state.set_global_attribute(module.GLOBAL_SEED_GENERATOR, None)


def is_predict_step(fn: Callable) -> bool:
    """Whether `fn` is what `Model.predict` runs on one batch, in either Keras."""
    return "make_predict_function" in getattr(fn, "__qualname__", "")


def is_symbolic_build() -> bool:
    """Whether Keras 3 is taking a batch, by `strategy.reduce`, only to infer shapes from it."""
    return any(
        frame.f_code.co_name == "_maybe_symbolic_build" and _module(frame).startswith("keras.src")
        for frame in itertools.islice(_callers(), 3)
    )


def is_reset() -> bool:
    """Whether a metric begins anew, for all rows."""
    names = (frame.f_code.co_name.removeprefix("tf__") for frame in _callers())  # AutoGraph's, in tf_keras
    return any(name in ("reset_state", "reset_states") for name in names)


def is_layer_statistic(kwargs: dict) -> bool:
    """Whether the variable being created is a layer's running statistic, e.g. BatchNorm's moving mean.

    That is a floating, non-trainable weight for which the layer names no aggregation (Keras 3, where
    the workers' values would silently drift apart) or MEAN on read (tf_keras, where each save would
    need all workers). Both become variables that are averaged when written, which by linearity has the
    same value: old m + (1 - m) mean(new) = mean(old m + (1 - m) new).
    """
    if kwargs.get("trainable", True) or not is_float(kwargs.get("dtype")):
        return False
    none = kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
    mean_on_read = (
        kwargs.get("aggregation") == tf.VariableAggregation.MEAN
        and kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    )
    if not (none or mean_on_read):
        return False
    return any(
        frame.f_code.co_name == "add_weight" and _is_kerass(frame)
        for frame in _callers()
    )


def is_step_counter(kwargs: dict) -> bool:
    """Whether the variable being created counts steps of a Keras optimizer or of tf_keras's `fit` and others.

    It is the same on all workers.
    """
    first = kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA
    if not first or not tf.as_dtype(kwargs.get("dtype") or tf.float32).is_integer:
        return False
    return any(
        _module(frame).startswith(_OPTIMIZERS)
        or (frame.f_code.co_name == "_create_counter_variable" and _is_kerass(frame))
        for frame in _callers()
    )


def is_float(dtype) -> bool:
    """Whether this is a dtype, and of floating numbers."""
    return dtype is not None and tf.as_dtype(dtype).is_floating


def trace_anew(model: Any) -> None:
    """Makes a model's `train_function` once more, which is traced at its next call."""
    model.train_function = None  # a `make_train_function` of the user's own may not be told to be forced
    made = model.make_train_function()
    model.train_function = model.train_function or made  # tf_keras goes by what it returns
