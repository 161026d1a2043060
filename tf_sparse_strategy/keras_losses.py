"""What a worker's losses and means weigh in those of all.

| Keras function                    | trouble                                   | what we do            |
|-----------------------------------|-------------------------------------------|-----------------------|
| (un)scale_loss_for_distribution   | a short batch weighs like a full one      | weigh by true rows    |
| reduce_values (Keras 3)           | means of a loss's own are not scaled      | scale them            |
| Mean.update_state(a batch's mean) | workers' means count alike                | weigh by true rows    |
| MeanMetricWrapper, CompileMetrics | a Loss that a metric calls is scaled      | do not scale it       |
| Loss.__call__ (Keras 3)           | what one within another gives is scaled,  | scale the outer one's |
|                                   | and again as a part of the outer one's    |                       |
| get_loss (Keras 3)                | a class with its own `__call__` scales not| scale what it gives   |
| Distiller.compute_loss (Keras 3)  | of its parts, functions' are not scaled   | scale the whole       |
"""

import threading

import tensorflow as tf

from tf_sparse_strategy.hooking import in_replica_of_ours, ours, while_set, wrap

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class _InThread(threading.local):
    """What losses this thread is in."""

    wants_whole = False  # a Loss is to return its mean, not this worker's share of it
    depth = 0  # of the calls of losses
    holds_another = False  # the innermost has called one that takes a mean
    is_compiled = False  # Keras's step has called them


_losses = _InThread()


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.distillation import distiller
    from keras.src.losses import loss
    from keras.src.metrics import reduction_metrics
    from keras.src.trainers import compile_utils

    wrap(loss.Loss, "__call__", _call_loss)
    wrap(compile_utils, "get_loss", _hook_own_call)
    wrap(compile_utils.CompileLoss, "call", _call_compiled_loss)
    wrap(distiller.Distiller, "compute_loss", _distill)
    wrap(loss, "reduce_values", _reduce_loss)
    wrap(loss, "scale_loss_for_distribution", _scale_loss)
    wrap(loss, "unscale_loss_for_distribution", _unscale_loss)
    wrap(reduction_metrics.Mean, "update_state", _record_mean)
    wrap(reduction_metrics.MeanMetricWrapper, "update_state", _record_loss)
    wrap(compile_utils.CompileMetrics, "update_state", _record_loss)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src.metrics import base_metric
    from tf_keras.src.utils import losses_utils

    wrap(losses_utils, "scale_loss_for_distribution", _scale_loss)
    wrap(base_metric.Mean, "update_state", _record_mean)


def wants_whole(begun: int = 0) -> bool:
    """Whether a Loss is to return its mean, and not this worker's share of it.

    Args:
      begun: 0 (default) of a Loss that would be called from here, 1 of the one whose call lasts.
    """
    return _losses.wants_whole or _losses.depth > begun


def _scale_loss(original, value):
    if _is_outside_a_step() or (wants_whole(begun=1) and in_replica_of_ours() is not None):
        return value
    weight = _loss_weight()
    return original(value) if weight is None else value * tf.cast(weight, value.dtype)


def _unscale_loss(original, value):
    if _is_outside_a_step():
        return value
    if in_replica_of_ours() is not None and value.shape.rank != 0:  # of each row one, which were not scaled
        return value
    weight = _loss_weight()
    if weight is None:
        return original(value)
    return tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))


def _is_outside_a_step() -> bool:
    """Under the scope, where Keras would take the share of what is this worker's, or all workers', whole."""
    return ours(tf.distribute.get_strategy()) is not None and tf.distribute.in_cross_replica_context()


def _reduce_loss(original, values, sample_weight=None, reduction="sum_over_batch_size"):
    """Keras scales means for distribution, but not what a loss function has reduced itself."""
    reduced = original(values, sample_weight, reduction)
    if in_replica_of_ours() is None or values.shape.rank != 0:
        return reduced
    is_keras = _losses.is_compiled and reduction != "sum"  # in a loop it is the user's
    is_mean = reduction in _MEANS or is_keras or _losses.holds_another
    return _share_of(reduced) if is_mean else reduced


def _share_of(mean):
    """This worker's share of a mean, by the function of Keras's that `_scale_loss` hooks."""
    from keras.src.losses import loss

    return loss.scale_loss_for_distribution(mean)


def _call_loss(original, loss, *args, **kwargs):
    value, _ = _called(original, loss, *args, **kwargs)
    return value


def _called(original, loss, *args, **kwargs):
    """(what a loss gives, whether it has called another, of a mean)."""
    depth = _losses.depth
    with while_set(_losses, depth=depth + 1, holds_another=False):
        value, holds_another = original(loss, *args, **kwargs), _losses.holds_another
    if depth > 0 and getattr(loss, "reduction", None) in _MEANS:
        _losses.holds_another = True  # the one around
    return value, holds_another


def _hook_own_call(original, *args, **kwargs):
    loss = original(*args, **kwargs)
    if loss is not None:
        wrap(type(loss), "__call__", _call_own)  # nothing, where Keras's is inherited
    return loss


def _call_own(original, loss, *args, **kwargs):
    """Of a class that replaces Keras's `__call__`, and with it the reduction."""
    if not (_losses.is_compiled or wants_whole()):  # as where no `compile` has hooked its class
        return original(loss, *args, **kwargs)
    is_compiled = _losses.is_compiled and not wants_whole()
    value, holds_another = _called(original, loss, *args, **kwargs)
    if in_replica_of_ours() is None or not is_compiled:
        return value
    is_mean = getattr(loss, "reduction", None) != "sum" or holds_another
    if not is_mean or tf.TensorShape(getattr(value, "shape", ())).rank != 0:
        return value
    return _share_of(tf.convert_to_tensor(value))


def _call_compiled_loss(original, loss, *args, **kwargs):
    with while_set(_losses, is_compiled=True):
        return original(loss, *args, **kwargs)


def _distill(original, distiller, *args, **kwargs):
    with while_set(_losses, wants_whole=True):  # its own trackers take them so
        total = original(distiller, *args, **kwargs)
    return total if in_replica_of_ours() is None else _share_of(total)


def _record_loss(original, metric, *args, **kwargs):
    """Of a Loss, or a function that calls one."""
    with while_set(_losses, wants_whole=True):
        return original(metric, *args, **kwargs)


def _record_mean(original, metric, values, sample_weight=None):
    weight = _loss_weight()
    is_scalar = tf.TensorShape(getattr(values, "shape", ())).rank == 0
    if weight is not None and sample_weight is None and is_scalar:
        sample_weight = weight
    return original(metric, values, sample_weight)


def _loss_weight():
    extended = in_replica_of_ours()
    return None if extended is None else extended.loss_weight()
