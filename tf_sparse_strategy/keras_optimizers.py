"""What optimizers of either Keras must do differently under this strategy.

| Keras function                              | trouble                              | what we do            |
|---------------------------------------------|--------------------------------------|-----------------------|
| TFOptimizer._all_reduce_sum_gradients       | hides which variable a gradient is of| reduce (gradient, var)|
| BaseOptimizer._clip_gradients               | clips before the gradients are summed| clip the sum          |
| BaseOptimizer._backend_apply_gradients      | adds a batch of no account to others | count each batch      |
| BaseOptimizer.build                         | may need more than a table's columns | refuse                |
| BaseOptimizer._overwrite_variables_directly…| float8: each worker its own scales   | the largest           |
| TFOptimizer._backend_update_step and decay  | overlap: a worker updates its chunks | update those          |
| TFOptimizer.add_variable_from_reference     | ShardedUpdate: slots are whole       | make this worker's    |
| LossScaleOptimizer.check_finite             | workers may disagree, then deadlock  | all must be finite    |
| LossScaleOptimizer.apply                    | looks at rows of no account          | count first           |
| tf_keras: the same four of its optimizers   | the same, with tables divided        | the same              |
| tf_keras: legacy optimizers                 | clip by the norm of some columns     | refuse                |
"""

import functools
import threading
import warnings

import tensorflow as tf
from absl import logging
from keras import optimizers

from lars_pto.keras3 import LAMB
from tf_sparse_strategy.communication.sparse import SparseCommunication
from tf_sparse_strategy.communication.switching import within
from tf_sparse_strategy.embedding import clipping, lazy, separable, slices
from tf_sparse_strategy.gradient_kinds import of_present, values_of
from tf_sparse_strategy.hooking import extended_of, in_replica_of_ours, ours, while_set, wrap
from tf_sparse_strategy.overlap.variables import may_be_behind

# Of which an entry's step is divided by the entry's usual size: what comes rarely steps too far.
_ADAPTIVE = (optimizers.Adam, optimizers.Adamax, optimizers.Nadam, optimizers.RMSprop, optimizers.Lamb, LAMB)


class _Applying(threading.local):
    sums = False  # whether what this thread clips now is summed
    done = False  # whether what it applies is, and is clipped
    counted = False  # whether what it applies is of rows that count alone


_applying = _Applying()


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import optimizer as tf_optimizer
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer

    base, of_tensorflow = base_optimizer.BaseOptimizer, tf_optimizer.TFOptimizer
    wrap(of_tensorflow, "_all_reduce_sum_gradients", _all_reduce_then_clip)
    wrap(of_tensorflow, "_backend_update_step", _update_chunks)
    wrap(of_tensorflow, "_apply_weight_decay", _decay_whole_variables)
    wrap(of_tensorflow, "add_variable_from_reference", _add_part_of_slot)
    wrap(base, "build", _build_for_parts)
    for kind in (base, lazy.LazyAdam, lazy.Adagrad):  # which add rows up before they clip
        wrap(kind, "_clip_gradients", _clip_later)
    wrap(base, "_backend_apply_gradients", _count_each_batch)
    wrap(base, "_overwrite_variables_directly_with_gradients", _overwrite_alike)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "check_finite", _check_finite_everywhere)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "apply", _count_before_scaling)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src.mixed_precision import loss_scale_optimizer
    from tf_keras.src.optimizers import optimizer
    from tf_keras.src.optimizers.legacy import optimizer_v2

    wrap(optimizer._BaseOptimizer, "build", separable.build_for_columns)
    wrap(optimizer_v2.OptimizerV2, "_create_all_weights", separable.build_for_columns)
    wrap(optimizer._BaseOptimizer, "apply_gradients", clipping.clip_and_apply)
    for kind in (optimizer.Optimizer, optimizer_v2.OptimizerV2):
        wrap(kind, "apply_gradients", _tell_outside_step)
    wrap(optimizer._BaseOptimizer, "_clip_gradients", clipping.clip_once)
    wrap(loss_scale_optimizer, "_is_all_finite", _all_columns_finite)


def _all_reduce_then_clip(original, optimizer, grads_and_vars):
    extended = in_replica_of_ours()
    if extended is None:
        return original(optimizer, grads_and_vars)
    grads_and_vars = list(grads_and_vars)
    if extended.chunked is not None and extended.chunked.is_inner(optimizer):
        return grads_and_vars  # sums already, and clipped
    summed = grads_and_vars
    if not _applying.done:
        extended.gradients.communication.check_optimizer(optimizer)
        reduce = functools.partial(extended.reduce_gradients, are_counted=_are_counted(optimizer))

        def sums(present):
            if extended.collectives.topology.num_workers > 1:
                present = clipping.once_each(optimizer, present)
            return _clip_sums(optimizer, reduce(present), [v for _, v in present])

        summed = of_present(sums, grads_and_vars)
    if extended.delayed is None:
        return summed
    return extended.delayed.delay(summed, [g for g, _ in grads_and_vars])


def _require_replica(optimizer):
    """Where no replica function runs: tells of what would be each worker's own training."""
    if ours(getattr(optimizer, "_distribution_strategy", None)) is None:
        return
    if tf.distribute.has_strategy():
        raise RuntimeError(
            f"{type(optimizer).__name__} is applied inside strategy.scope(), but not in a step of the "
            "workers: put the step into a function and call strategy.run(function, args=...)."
        )
    warnings.warn(
        f"{type(optimizer).__name__} is applied outside strategy.run, to gradients as they are: if they are "
        "not the workers' sum already, each trains a copy of its own. Call strategy.run(step, args=...) "
        "instead of step(...).",
        stacklevel=2,
    )


def _tell_outside_step(original, optimizer, *args, **kwargs):
    if in_replica_of_ours() is None:
        _require_replica(optimizer)
    return original(optimizer, *args, **kwargs)


def _accumulates(optimizer):
    return optimizer.gradient_accumulation_steps is not None


def _are_counted(optimizer):
    return _applying.counted or _accumulates(optimizer)


def _count_each_batch(original, optimizer, grads, trainable_variables):
    """Before gradients are added to those of other batches, of which rows may count."""
    extended = in_replica_of_ours()
    if extended is None:
        _require_replica(optimizer)
    elif _accumulates(optimizer) and not _applying.counted:
        grads = _counted(extended, grads, trainable_variables)
    return original(optimizer, grads, trainable_variables)


def _overwrite_alike(original, optimizer, grads, variables):
    """What float8 training keeps of the largest magnitudes must be those of all rows."""
    extended = in_replica_of_ours()
    if extended is not None:
        grads = [
            extended.collectives.all_reduce(extended.masked(g), op="max", purpose="overwritten")
            if g is not None and optimizer._overwrite_variable_with_gradient(v) else g
            for g, v in zip(grads, variables, strict=True)
        ]  # fmt: skip
    return original(optimizer, grads, variables)


def _build_for_parts(original, optimizer, variables):
    """Before slots are made: an optimizer that is refused could make them of different shapes."""
    table = slices.first(variables)
    if table is not None:
        separable.require_no_loss_scale_factor(optimizer, table)
    separable.require_elementwise(optimizer, table)
    extended = extended_of(getattr(optimizer, "_distribution_strategy", None))
    # It would train without overlap.
    if extended is None and any(
        slices.of(v) is None and may_be_behind(slices.tensorflows(v)) for v in variables
    ):
        raise _made_outside(optimizer)
    if extended is not None:
        _require_made_in_scope(variables)
        _tell_of_sparse_sums(extended, optimizer)
    chunked = None if extended is None or optimizer.built else extended.chunked
    if chunked is not None:
        chunked.check(optimizer, variables)
        wrap(type(optimizer), "_apply_weight_decay", _decay_whole_variables)  # if it has one of its own
    original(optimizer, variables)
    if chunked is not None:
        try:
            chunked.add(optimizer, variables)
        except Exception:
            optimizer.built = False  # nor is it without its slots
            raise
    if extended is not None and extended.delayed is not None:
        extended.delayed.take_optimizer(optimizer, variables)


def _require_made_in_scope(variables):
    for variable in variables:
        if slices.strategy_of(variable) is None:
            raise ValueError(
                f"{getattr(variable, 'path', variable.name)!r} was made outside strategy.scope(), and its "
                "optimizer inside. Make the model inside `with strategy.scope():`, and if you build or call "
                "it before `fit`, do so there: layers make variables when they see their first input."
            )


def _tell_of_sparse_sums(extended, optimizer):
    """On rank 0, of an optimizer that learns much worse from them."""
    scheme, topology = extended.gradients.communication, extended.collectives.topology
    sending_few = {
        type(inner).__name__
        for inner in within(scheme, topology)
        if isinstance(inner, SparseCommunication) and inner.drops(1, "float32", topology)
    }
    if topology.rank == 0 and sending_few and isinstance(optimizer, _ADAPTIVE):
        logging.warning(
            "%s divides an entry's step by its usual size, and models learn much worse so where entries come "
            "rarely, as they do by %s. Use SGD or LARS, or communication='float16'.",
            type(optimizer).__name__,
            ", ".join(sorted(sending_few)),
        )


def _made_outside(optimizer):
    return ValueError(
        f"{type(optimizer).__name__} was made outside strategy.scope(), and trains variables made inside. "
        "Make the optimizer inside `with strategy.scope():`, too."
    )


def _add_part_of_slot(original, optimizer, reference_variable, *args, **kwargs):
    extended = extended_of(getattr(optimizer, "_distribution_strategy", None))
    if extended is None and slices.divided(reference_variable) is not None:
        optimizer.built = False
        raise _made_outside(optimizer)  # or files would hold one worker's part of the slot as the whole
    update = _chunked_update(extended, optimizer)
    part = None if update is None else update.part_beside(reference_variable)
    if part is None:
        try:
            return original(optimizer, reference_variable, *args, **kwargs)
        except RuntimeError as mixed:  # two strategies, says TensorFlow
            if extended is not None or extended_of(slices.strategy_of(reference_variable)) is None:
                raise
            optimizer.built = False
            raise _made_outside(optimizer) from mixed
    chunk, partition = part
    with extended.slices.making(partition):
        return original(optimizer, chunk, *args, **kwargs)


def _chunked_update(extended, optimizer):
    chunked = None if extended is None else extended.chunked
    return None if chunked is None else chunked.of(optimizer)


def _update_chunks(original, optimizer, grads, variables, learning_rate):
    extended = in_replica_of_ours()
    if _chunked_update(extended, optimizer) is None:
        if extended is not None and extended.chunked is not None:
            extended.chunked.refuse_others(optimizer, variables)
        return original(optimizer, grads, variables, learning_rate)
    pairs = list(zip(grads, variables, strict=True))
    check, reduce = (
        functools.partial(function, are_counted=_are_counted(optimizer))
        for function in (extended.checked_gradients, extended.reduce_gradients)
    )
    others, done = extended.chunked.apply(optimizer, pairs, learning_rate, check, reduce)
    if others:
        with while_set(_applying, done=done):
            original(optimizer, *zip(*others, strict=True), learning_rate)


def _decay_whole_variables(original, optimizer, variables, *args, **kwargs):
    update = _chunked_update(in_replica_of_ours(), optimizer)
    wholes = variables if update is None else [v for v in variables if not update.divides(v)]
    if len(wholes) > 0:
        original(optimizer, wholes, *args, **kwargs)


def _clip_sums(optimizer, gradients, variables):
    def clip(summed):
        with while_set(_applying, sums=True):
            return optimizer._clip_gradients(summed)

    table = slices.first(variables)
    if table is None:
        return clip(gradients)
    separable.require_elementwise(optimizer, table)
    return clipping.clip(optimizer, gradients, variables, clip_whole=clip)


def _clip_later(original, optimizer, grads):
    now = in_replica_of_ours() is None or _applying.sums
    return original(optimizer, grads) if now else grads


def _count_before_scaling(original, optimizer, grads, trainable_variables=None):
    extended = in_replica_of_ours()
    if extended is not None:
        variables = trainable_variables or optimizer.inner_optimizer._trainable_variables
        grads = _counted(extended, grads, variables)
    with while_set(_applying, counted=extended is not None):
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
