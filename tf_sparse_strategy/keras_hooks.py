"""What Keras must do differently under this strategy when it trains.

(keras_saving.py, keras_backups.py: when it saves. keras_epochs.py: how long epochs are, and
their logs. keras_losses.py: what losses and means weigh.)

Each hook wraps one function of Keras 3 or tf_keras and acts only where a `SparseStrategy` is at hand, the
current one, the model's or the optimizer's; elsewhere it calls the original (but for `fit`'s warning).

| Keras function                              | trouble                              | what we do            |
|---------------------------------------------|--------------------------------------|-----------------------|
| TFOptimizer._all_reduce_sum_gradients       | hides which variable a gradient is of| reduce (gradient, var)|
| BaseOptimizer._clip_gradients               | clips before the gradients are summed| clip the sum          |
| BaseOptimizer._backend_apply_gradients      | adds a batch of no account to others | count each batch      |
| BaseOptimizer.build                         | may need more than a table's columns | refuse                |
| TFOptimizer._backend_update_step and decay  | overlap: a worker updates its chunks | update those          |
| TFOptimizer.add_variable_from_reference     | ShardedUpdate: slots are whole       | make this worker's    |
| CallbackList.on_epoch_end and others        | variables may be behind              | synchronize           |
| CallbackList.on_epoch_end (both Kerases)    | a callback may stop one worker alone | all stop if any does  |
| SeedGenerator.next                          | all workers draw the same            | each draws others     |
| LossScaleOptimizer.check_finite             | workers may disagree, then deadlock  | all must be finite    |
| LossScaleOptimizer.apply                    | looks at rows of no account          | count first           |
| tf_keras: the same four of its optimizers   | the same, with tables divided        | the same              |
| tf_keras: legacy optimizers                 | clip by the norm of some columns     | refuse                |
| ON_READ metric updates                      | a row of no account would count      | see variables         |
| ProgbarLogger.set_params                    | P workers print P progress bars      | rank 0 prints         |
| TerminateOnNaN.on_batch_end (both Kerases)  | one worker's loss stops it alone     | all stop on any NaN   |
| Functional._run_through_graph               | looks up one table after another     | all together          |
| Model.fit                                   | a model made outside the scope       | warn                  |
| CallbackList.on_train_batch_begin, _end     | overlap: sizes of buckets are tried  | times the call between|
"""

import functools
import threading
import warnings

import tensorflow as tf

from tf_sparse_strategy import keras_backups, keras_epochs, keras_losses, keras_saving
from tf_sparse_strategy.embedding import clipping, fusion, separable, slices
from tf_sparse_strategy.gradients import of_present, values_of
from tf_sparse_strategy.hooking import extended_of, in_replica_of_ours, model_of, while_set, wrap
from tf_sparse_strategy.keras_callers import is_in_fit
from tf_sparse_strategy.overlap import tuned_fit

# .sums: whether what this thread clips now is summed; .done: whether what it applies is, and is clipped
_clipping = threading.local()
_SCATTER = 0x9E3779B1  # odd; times a rank, so that workers' seeds are not the next ones of others' generators


def install() -> None:
    """Installs the hooks for every Keras that is installed. Idempotent.

    Raises:
      RuntimeError: a Keras function to be wrapped does not exist: an untested Keras version.
    """
    installers = (
        _install_keras3,
        _install_tf_keras,
        keras_epochs.install_keras3,
        keras_epochs.install_tf_keras,
        keras_losses.install_keras3,
        keras_losses.install_tf_keras,
        keras_saving.install_keras3,
        keras_saving.install_tf_keras,
        keras_backups.install_keras3,
        keras_backups.install_tf_keras,
    )
    for installer in installers:
        try:
            installer()
        except (ImportError, AttributeError) as error:
            if getattr(error, "name", None) in ("keras", "tf_keras"):
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


def _install_keras3() -> None:
    from keras.src.backend.tensorflow import optimizer as tf_optimizer
    from keras.src.callbacks import callback_list, progbar_logger, terminate_on_nan
    from keras.src.models import functional
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer
    from keras.src.random import seed_generator

    wrap(tf_optimizer.TFOptimizer, "_all_reduce_sum_gradients", _all_reduce_then_clip)
    wrap(tf_optimizer.TFOptimizer, "_backend_update_step", _update_chunks)
    wrap(tf_optimizer.TFOptimizer, "_apply_weight_decay", _decay_whole_variables)
    wrap(tf_optimizer.TFOptimizer, "add_variable_from_reference", _add_part_of_slot)
    wrap(base_optimizer.BaseOptimizer, "build", _build_for_parts)
    wrap(base_optimizer.BaseOptimizer, "_clip_gradients", _clip_later)
    wrap(base_optimizer.BaseOptimizer, "_backend_apply_gradients", _count_each_batch)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "check_finite", _check_finite_everywhere)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "apply", _count_before_scaling)
    wrap(progbar_logger.ProgbarLogger, "set_params", _show_progress_once)
    wrap(terminate_on_nan.TerminateOnNaN, "on_batch_end", _stop_together)
    wrap(functional.Functional, "_run_through_graph", fusion.run_graph)
    wrap(callback_list.CallbackList, "on_train_batch_begin", tuned_fit.begin_call)
    wrap(callback_list.CallbackList, "on_train_batch_end", tuned_fit.end_call)
    for moment in ("train_begin", "test_begin", "predict_begin"):
        wrap(callback_list.CallbackList, f"on_{moment}", _synchronize_first)
    wrap(callback_list.CallbackList, "on_epoch_end", _end_epoch)
    wrap(callback_list.CallbackList, "on_train_end", _end_training)
    wrap(seed_generator.SeedGenerator, "next", _draw_apart)


def _install_tf_keras() -> None:
    from tf_keras.src import callbacks
    from tf_keras.src.mixed_precision import loss_scale_optimizer
    from tf_keras.src.optimizers import optimizer
    from tf_keras.src.optimizers.legacy import optimizer_v2

    wrap(optimizer._BaseOptimizer, "build", separable.build_for_columns)
    wrap(optimizer_v2.OptimizerV2, "_create_all_weights", separable.build_for_columns)
    wrap(optimizer._BaseOptimizer, "apply_gradients", clipping.clip_and_apply)
    wrap(optimizer._BaseOptimizer, "_clip_gradients", clipping.clip_once)
    wrap(loss_scale_optimizer, "_is_all_finite", _all_columns_finite)
    wrap(callbacks.ProgbarLogger, "set_params", _show_progress_once)
    wrap(callbacks.TerminateOnNaN, "on_batch_end", _stop_together)
    wrap(callbacks.CallbackList, "on_epoch_end", _end_epoch)


def _all_reduce_then_clip(original, optimizer, grads_and_vars):
    extended = in_replica_of_ours()
    if extended is None:
        return original(optimizer, grads_and_vars)
    grads_and_vars = list(grads_and_vars)
    if extended.chunked is not None and extended.chunked.is_inner(optimizer):
        return grads_and_vars  # sums already, and clipped
    summed = grads_and_vars
    if not getattr(_clipping, "done", False):
        extended.gradients.communication.check_optimizer(optimizer)
        reduce = functools.partial(extended.reduce_gradients, are_counted=_accumulates(optimizer))
        summed = of_present(
            lambda present: _clip_sums(optimizer, reduce(present), [v for _, v in present]), grads_and_vars
        )
    if extended.delayed is None:
        return summed
    return extended.delayed.delay(summed, [g for g, _ in grads_and_vars])


def _accumulates(optimizer):
    return optimizer.gradient_accumulation_steps is not None


def _count_each_batch(original, optimizer, grads, trainable_variables):
    """Before gradients are added to those of other batches, of which rows may count."""
    extended = in_replica_of_ours()
    if extended is not None and _accumulates(optimizer):
        grads = _counted(extended, grads, trainable_variables)
    return original(optimizer, grads, trainable_variables)


def _build_for_parts(original, optimizer, variables):
    """Before slots are made: an optimizer that is refused could make them of different shapes."""
    table = slices.first(variables)
    if table is not None:
        separable.require_no_loss_scale_factor(optimizer, table)
    separable.require_elementwise(optimizer, table)
    extended = extended_of(getattr(optimizer, "_distribution_strategy", None))
    # It would train without overlap.
    if extended is None and any(slices.of(v) is None and _may_be_behind(v) for v in variables):
        raise _made_outside(optimizer)
    chunked = None if extended is None or optimizer.built else extended.chunked
    if chunked is not None:
        chunked.check(optimizer, variables)
    original(optimizer, variables)
    if chunked is not None:
        try:
            chunked.add(optimizer, variables)
        except Exception:
            optimizer.built = False  # nor is it without its slots
            raise
    if extended is not None and extended.delayed is not None:
        extended.delayed.take_optimizer(optimizer, variables)


def _made_outside(optimizer):
    return ValueError(
        f"{type(optimizer).__name__} was made outside strategy.scope(), and trains variables of which "
        "each worker holds or updates a part. Make the optimizer inside `with strategy.scope():`."
    )


def _may_be_behind(variable):
    return getattr(type(slices.tensorflows(variable)), "may_be_behind", False)


def _add_part_of_slot(original, optimizer, reference_variable, *args, **kwargs):
    extended = extended_of(getattr(optimizer, "_distribution_strategy", None))
    if extended is None and slices.divided(reference_variable) is not None:
        optimizer.built = False
        raise _made_outside(optimizer)  # or files would hold one worker's part of the slot as the whole
    chunked = None if extended is None else extended.chunked
    update = None if chunked is None else chunked.of(optimizer)
    part = None if update is None else update.part_beside(reference_variable)
    if part is None:
        return original(optimizer, reference_variable, *args, **kwargs)
    chunk, partition = part
    with extended.slices.making(partition):
        return original(optimizer, chunk, *args, **kwargs)


def _chunked_update(optimizer):
    extended = in_replica_of_ours()
    return None if extended is None or extended.chunked is None else extended.chunked.of(optimizer)


def _update_chunks(original, optimizer, grads, variables, learning_rate):
    extended = in_replica_of_ours()
    if _chunked_update(optimizer) is None:
        if extended is not None and extended.chunked is not None:
            extended.chunked.refuse_others(optimizer, variables)
        return original(optimizer, grads, variables, learning_rate)
    pairs = list(zip(grads, variables, strict=True))
    check, reduce = (
        functools.partial(function, are_counted=_accumulates(optimizer))
        for function in (extended.checked_gradients, extended.reduce_gradients)
    )
    others, done = extended.chunked.apply(optimizer, pairs, learning_rate, check, reduce)
    if others:
        with while_set(_clipping, done=done):
            original(optimizer, *zip(*others, strict=True), learning_rate)


def _decay_whole_variables(original, optimizer, variables):
    update = _chunked_update(optimizer)
    return original(optimizer, [v for v in variables if update is None or not update.divides(v)])


def _synchronize_first(original, callbacks, *args, **kwargs):
    strategy = getattr(model_of(callbacks), "distribute_strategy", None)
    if extended_of(strategy) is not None:
        strategy.synchronize()
    return original(callbacks, *args, **kwargs)


def _end_epoch(original, callbacks, *args, **kwargs):
    """The clock of one worker, or a signal to it, may say that it is enough."""
    result = _synchronize_first(original, callbacks, *args, **kwargs)
    model = model_of(callbacks)
    extended = extended_of(getattr(model, "distribute_strategy", None))
    if extended is not None and extended.collectives.topology.num_workers > 1 and is_in_fit(model):
        own = tf.constant(int(bool(model.stop_training)))
        model.stop_training = bool(extended.collectives.all_reduce(own, op="max", purpose="stop"))
    return result


def _draw_apart(original, generator, *args, **kwargs):
    """Rows of one global batch must not share their noise because they are on several workers."""
    seed = original(generator, *args, **kwargs)
    extended = in_replica_of_ours()
    rank = 0 if extended is None else extended.collectives.topology.rank
    if rank == 0:
        return seed
    return tf.bitwise.bitwise_xor(seed, tf.constant([rank * _SCATTER % 2**31, 0], seed.dtype))


def _end_training(original, callbacks, *args, **kwargs):
    tuned_fit.end_training(callbacks)
    return _synchronize_first(original, callbacks, *args, **kwargs)


def _clip_sums(optimizer, gradients, variables):
    def clip(summed):
        with while_set(_clipping, sums=True):
            return optimizer._clip_gradients(summed)

    table = slices.first(variables)
    if table is None:
        return clip(gradients)
    separable.require_elementwise(optimizer, table)
    return clipping.clip(optimizer, gradients, variables, clip_whole=clip)


def _clip_later(original, optimizer, grads):
    now = in_replica_of_ours() is None or getattr(_clipping, "sums", False)
    return original(optimizer, grads) if now else grads


def _count_before_scaling(original, optimizer, grads, trainable_variables=None):
    extended = in_replica_of_ours()
    if extended is not None:
        variables = trainable_variables or optimizer.inner_optimizer._trainable_variables
        grads = _counted(extended, grads, variables)
    return original(optimizer, grads, trainable_variables)


def _counted(extended, grads, variables):
    """Those of rows that count; None where there is none."""
    pairs = of_present(
        lambda present: [gradient for gradient, _ in extended.counted_gradients(present)],
        zip(grads, variables, strict=True),
    )
    return [gradient for gradient, _ in pairs]


def _check_finite_everywhere(original, optimizer, grads):
    extended = in_replica_of_ours()
    if extended is None:
        return original(optimizer, grads)
    # Keras looks at the last one only of rows that have the same id.
    finite = original(optimizer, [values_of(g) for g in grads])
    return extended.collectives.all_reduce(finite, op="min", purpose="finite")


def _all_columns_finite(original, grads):
    """tf_keras looks at sums, which are the same on all workers, but for the columns of tables."""
    extended = in_replica_of_ours()
    finite = original(grads)
    if extended is None or not extended.slices.are_divided:
        return finite
    return extended.collectives.all_reduce(finite, op="min", purpose="finite")


def _show_progress_once(original, logger, params):
    extended = extended_of(getattr(logger.model, "distribute_strategy", None))
    if extended is not None and extended.collectives.topology.rank > 0:
        params = {**params, "verbose": 0}  # all workers' logs are the same
    return original(logger, params)


def _warn_outside_the_scope(original, model, *args, **kwargs):
    if extended_of(getattr(model, "distribute_strategy", None)) is None:
        warnings.warn(
            f"the model {model.name!r} was not made under strategy.scope(): each worker trains a copy of its "
            "own on all of the data. Build and compile it inside `with strategy.scope():`.",
            stacklevel=3,
        )
    return original(model, *args, **kwargs)


def _stop_together(original, callback, batch, logs=None):
    extended = extended_of(getattr(callback.model, "distribute_strategy", None))
    if extended is not None and "loss" in (logs or {}):
        total = extended.collectives.all_reduce(tf.convert_to_tensor(logs["loss"]), purpose="loss")
        logs = {**logs, "loss": total.numpy()}
    return original(callback, batch, logs)
