"""What Keras must do differently under this strategy when it trains.

(keras_optimizers.py: from gradients to updates. keras_epochs.py: how long epochs are, and their
logs. keras_losses.py: what losses and means weigh. keras_saving.py, keras_file_callbacks.py,
keras_backups.py: when it saves.)

Each hook wraps one function of Keras 3 or tf_keras and acts only where a `SparseStrategy` is at hand, the
current one, the model's or the optimizer's; elsewhere it calls the original (but for `fit`'s warning).

| Keras function                              | trouble                              | what we do            |
|---------------------------------------------|--------------------------------------|-----------------------|
| CallbackList.on_epoch_end and others        | variables may be behind              | synchronize           |
| CallbackList.on_epoch_end (both Kerases)    | a callback may stop one worker alone | all stop if any does  |
| SeedGenerator.next; tf_keras: its layers'   | all workers draw the same            | each draws others     |
| ON_READ metric updates                      | a row of no account would count      | see variables         |
| ProgbarLogger.set_params                    | P workers print P progress bars      | rank 0 prints         |
| BatchNormalization._moments                 | with a mask, it is not synchronized  | sums of all workers   |
| TerminateOnNaN.on_batch_end (both Kerases)  | one worker's loss stops it alone     | all stop on any NaN   |
| Layer.add_weight (Keras 3)                  | statistics made later are not seen   | make means of them    |
| Variable.assign_add, _sub (Keras 3)         | by "sum" the old value is summed, too | add what all add     |
| Functional._run_through_graph               | looks up one table after another     | all together          |
| Model.fit                                   | a model made outside the scope       | warn                  |
| CallbackList.on_train_batch_begin, _end     | overlap: sizes of buckets are tried  | times the call between|
"""

import functools
import warnings

import tensorflow as tf

from tf_sparse_strategy import (
    keras_backups,
    keras_building,
    keras_epochs,
    keras_file_callbacks,
    keras_losses,
    keras_optimizers,
    keras_saving,
)
from tf_sparse_strategy.embedding import fusion
from tf_sparse_strategy.hooking import extended_of_model, in_replica_of_ours, model_of, ours, wrap
from tf_sparse_strategy.keras_callers import is_float, is_in_fit, is_stateless
from tf_sparse_strategy.overlap import tuned_fit

_SCATTER = 0x9E3779B1  # odd; times a rank, so that workers' seeds are not the next ones of others' generators


def install() -> None:
    """Installs the hooks for every Keras that is installed. Idempotent.

    Raises:
      RuntimeError: a Keras function to be wrapped does not exist: an untested Keras version.
    """
    others = (
        keras_optimizers, keras_epochs, keras_losses, keras_saving, keras_file_callbacks, keras_backups,
    )
    installers = [f for module in others for f in (module.install_keras3, module.install_tf_keras)]
    for installer in (install_keras3, install_tf_keras, *installers, keras_building.install_keras3):
        try:
            installer()
        except (ImportError, AttributeError) as error:
            if getattr(error, "name", None) == "tf_keras":
                continue  # not installed
            raise RuntimeError(
                f"this Keras is not one tf_sparse_strategy knows: {error}. Install keras==3.15.* and "
                "tf-keras==2.20.*."
            ) from error


def warn_of_models_outside_the_scope() -> None:
    """Lets `fit` warn from now on when the model is not of a `SparseStrategy`. Idempotent."""
    from keras.src.backend.tensorflow import trainer

    wrap(trainer.TensorFlowTrainer, "fit", _warn_outside_the_scope)
    try:
        from tf_keras.src.engine import training
    except ImportError:
        return
    wrap(training.Model, "fit", _warn_outside_the_scope)


def install_keras3() -> None:
    """Installs the hooks of this module on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import core
    from keras.src.callbacks import callback_list, progbar_logger, terminate_on_nan
    from keras.src.layers.layer import Layer
    from keras.src.layers.normalization.batch_normalization import BatchNormalization
    from keras.src.models import functional
    from keras.src.random import seed_generator

    wrap(progbar_logger.ProgbarLogger, "set_params", _show_progress_once)
    wrap(terminate_on_nan.TerminateOnNaN, "on_batch_end", _stop_together)
    wrap(BatchNormalization, "_moments", _masked_moments_of_all)
    wrap(Layer, "add_weight", _average_later)
    for method in ("assign_add", "assign_sub"):
        wrap(core.Variable, method, functools.partial(_add_sum, method))
    wrap(functional.Functional, "_run_through_graph", fusion.run_graph)
    wrap(callback_list.CallbackList, "on_train_batch_begin", tuned_fit.begin_call)
    wrap(callback_list.CallbackList, "on_train_batch_end", tuned_fit.end_call)
    for moment in ("train_begin", "test_begin", "predict_begin"):
        wrap(callback_list.CallbackList, f"on_{moment}", _synchronize_first)
    wrap(callback_list.CallbackList, "on_epoch_end", _end_epoch)
    wrap(callback_list.CallbackList, "on_train_end", _end_training)
    wrap(seed_generator.SeedGenerator, "next", _draw_apart)


def install_tf_keras() -> None:
    """Installs the hooks of this module on tf_keras. Idempotent."""
    from tf_keras.src import backend, callbacks

    wrap(backend.RandomGenerator, "make_legacy_seed", _draw_apart_in_tf_keras)
    wrap(callbacks.ProgbarLogger, "set_params", _show_progress_once)
    wrap(callbacks.TerminateOnNaN, "on_batch_end", _stop_together)
    wrap(callbacks.CallbackList, "on_epoch_end", _end_epoch)


def _average_later(original, layer, *args, **kwargs):
    """Keras makes none while it infers shapes; later nothing tells `is_layer_statistic` whose one is."""
    weight = original(layer, *args, **kwargs)
    is_statistic = not weight.trainable and is_float(weight.dtype) and weight.aggregation in (None, "none")
    if weight._value is None and is_statistic and ours(tf.distribute.get_strategy()) is not None:
        weight._aggregation = "mean"
    return weight


def _add_sum(method, original, variable, value):
    is_summed = (variable.aggregation, variable.synchronization) == ("sum", "auto")
    held = variable._value  # `value` may be a copy in another dtype
    if not is_summed or held is None or in_replica_of_ours() is None or is_stateless():
        return original(variable, value)
    return getattr(held, method)(tf.cast(value, held.dtype))


def _synchronize_first(original, callbacks, *args, **kwargs):
    model = model_of(callbacks)
    if extended_of_model(model) is not None:
        model.distribute_strategy.synchronize()
    return original(callbacks, *args, **kwargs)


def _end_epoch(original, callbacks, *args, **kwargs):
    """The clock of one worker, or a signal to it, may say that it is enough."""
    result = _synchronize_first(original, callbacks, *args, **kwargs)
    model = model_of(callbacks)
    extended = ours(getattr(model, "distribute_strategy", None))
    if extended is not None and is_in_fit(model):
        own = tf.constant(int(bool(model.stop_training)))
        model.stop_training = bool(extended.collectives.all_reduce(own, op="max", purpose="stop"))
    return result


def _rank_in_step() -> int:
    extended = in_replica_of_ours()
    return 0 if extended is None else extended.collectives.topology.rank


def _draw_apart(original, generator, *args, **kwargs):
    """Rows of one global batch must not share their noise because they are on several workers."""
    seed, rank = original(generator, *args, **kwargs), _rank_in_step()
    if rank == 0:
        return seed
    return tf.bitwise.bitwise_xor(seed, tf.constant([rank * _SCATTER % 2**31, 0], seed.dtype))


def _draw_apart_in_tf_keras(original, generator):
    """The same of its layers, which without a seed of their own draw by TensorFlow's, which is common."""
    seed, rank = original(generator), _rank_in_step()
    if rank == 0:
        return seed
    if seed is None:
        _, seed = tf.compat.v1.get_seed(None)  # moves on what the first worker's operation moves on
    if seed is None:  # nobody has set TensorFlow's here: each process draws its own
        return None
    return (seed + rank * _SCATTER) % 2**31


def _masked_moments_of_all(original, layer, inputs, mask):
    """(mean, variance) of what `mask` keeps of all workers' rows, where the layer is synchronized."""
    if mask is None or not layer.synchronized or in_replica_of_ours() is None:
        return original(layer, inputs, mask)
    axes, context = layer._reduction_axes, tf.distribute.get_replica_context()
    kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

    def mean_of(x):
        total = tf.reduce_sum(tf.where(kept, x, 0), axes, keepdims=True)
        return tf.math.divide_no_nan(context.all_reduce("SUM", total), number)

    number = context.all_reduce("SUM", tf.reduce_sum(tf.cast(kept, inputs.dtype), axes, keepdims=True))
    mean = mean_of(inputs)
    variance = mean_of(tf.square(inputs - mean))
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _end_training(original, callbacks, *args, **kwargs):
    tuned_fit.end_training(callbacks)
    return _synchronize_first(original, callbacks, *args, **kwargs)


def _show_progress_once(original, logger, params):
    extended = extended_of_model(logger.model)
    if extended is not None and extended.collectives.topology.rank > 0:
        params = {**params, "verbose": 0}  # all workers' logs are the same
    return original(logger, params)


def _warn_outside_the_scope(original, model, *args, **kwargs):
    if extended_of_model(model) is None:
        warnings.warn(
            f"the model {model.name!r} was not made under strategy.scope(), and SparseStrategy does not "
            "train it: each worker of several would train a copy of its own on all of the data. Build and "
            "compile it inside `with strategy.scope():`.",
            stacklevel=3,
        )
    return original(model, *args, **kwargs)


def _stop_together(original, callback, batch, logs=None):
    extended = extended_of_model(callback.model)
    if extended is not None and "loss" in (logs or {}):
        total = extended.collectives.all_reduce(tf.convert_to_tensor(logs["loss"]), purpose="loss")
        logs = {**logs, "loss": total.numpy()}
    return original(callback, batch, logs)
