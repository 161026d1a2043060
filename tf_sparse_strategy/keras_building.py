"""Models of Keras 3: what `compile` makes, what is built before a first step, and whose metrics count.

| Keras function                | trouble                                  | what we do         |
|-------------------------------|------------------------------------------|--------------------|
| Trainer.compile               | makes metrics outside the scope          | within it          |
| Trainer._maybe_symbolic_build | takes a batch, and others, from the data | ask for its shapes |
"""

import contextlib
import itertools
import weakref

import tensorflow as tf
from absl import logging

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.hooking import extended_of_model, optimizers_of, while_set, wrap
from tf_sparse_strategy.keras_callers import is_in_fit

_NOT_DENSE = (tf.RaggedTensorSpec, tf.SparseTensorSpec)  # from which Keras infers shapes as if they were
_told = weakref.WeakSet()  # metrics of which a warning has told


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers import trainer as base_trainer

    wrap(base_trainer.Trainer, "compile", _compile_in_scope)
    wrap(trainer.TensorFlowTrainer, "_maybe_symbolic_build", _build_by_shapes)


def _compile_in_scope(original, model, *args, **kwargs):
    """Of a model of the scope, as tf_keras does: it makes the metric of the loss, and those given by name."""
    is_ours = extended_of_model(model) is not None
    if is_ours:
        model._optimizer_was_given = bool(args) or "optimizer" in kwargs  # else it is Keras's default
    is_outside = is_ours and not tf.distribute.has_strategy()
    with model.distribute_strategy.scope() if is_outside else contextlib.nullcontext():
        return original(model, *args, **kwargs)


def _build_by_shapes(original, model, iterator=None, data_batch=None):
    """As of a batch that Keras would read, and not put back: generators and PyDatasets go on behind it.

    A step of one's own builds what it uses, as in one process: of what it makes of a batch. But where updates
    are divided, the step begins with their parts.
    """
    extended = extended_of_model(model)
    if extended is None:
        original(model, iterator=iterator, data_batch=data_batch)
        return
    is_divided = extended.chunked is not None
    is_taken = is_divided and bool(extended.chunked.owners(model.trainable_variables))
    if has_kerass_step(model):
        is_unused = is_taken and not is_in_fit(model)
        with without_default_optimizer(model, is_unused):
            _build(original, model, extended, iterator, data_batch)
            _build_optimizer(model)
    elif is_divided:
        with while_set(model, _compile_metrics=None, _compile_loss=None, optimizer=None):
            _build(original, model, extended, iterator, data_batch)
        with without_default_optimizer(model, is_taken):
            _build_optimizer(model)
    require_metrics_of_all(model)


def _build_optimizer(model):
    """If it has no other."""
    is_only = model.optimizer is not None and [model.optimizer] == optimizers_of(model)
    if is_only and not model.optimizer.built and _is_built(model) and model.trainable_variables:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def without_default_optimizer(model, is_unused):
    """Keras's default, where nobody uses it, would take over the variables whose update is divided."""
    is_default = not getattr(model, "_optimizer_was_given", True)
    return while_set(model, optimizer=None) if is_default and is_unused else contextlib.nullcontext()


def _build(original, model, extended, iterator, data_batch):
    from keras.src.models.model import Model

    is_kerass = has_kerass_step(model)
    unbuilt = [layer for layer in model._flatten_layers() if not layer.built]
    if any(getattr(layer, "_deferred_dependencies", None) for layer in unbuilt):
        return  # a checkpoint waits for its variables, which have no values while shapes are inferred
    if not is_kerass and type(model).call is Model.call:
        return  # it has none: what its step uses, that builds
    if iterator is None:
        original(model, data_batch=data_batch)
        return
    specs = extended.local_value(iterator._distributed_dataset.element_spec)
    flat = tf.nest.flatten(specs)
    # Eagerly a metric may look at its result, which is a symbol while shapes are inferred.
    asks_later = model.run_eagerly and extended.chunked is None
    may_fail = not is_kerass or asks_later or any(isinstance(spec, _NOT_DENSE) for spec in flat)
    try:
        # Weights may have shapes of the data, and eager code may ask for sizes.
        if model.run_eagerly or not (_is_built(model) or all(_is_known(spec) for spec in flat)):
            original(model, iterator=iterator)
            return
        batch = tf.nest.map_structure(lambda s: s if hasattr(s, "shape") else None, specs)  # None: not given
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=batch)
    except Exception as error:
        of_data = asks_later and isinstance(error, tf.errors.OpError)  # or of a worker that was lost
        if of_data or not may_fail:
            raise
        logging.info("%r is built by its first step: %s", model.name, error)


def has_kerass_step(model) -> bool:
    """Whether it has no `train_step` of its own."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return type(model).train_step is TensorFlowTrainer.train_step


def _is_built(model) -> bool:
    return all(layer.built for layer in model._flatten_layers())


def require_metrics_of_all(model) -> None:
    """Raises ValueError where a metric was made outside the scope; warns of what none of them adds up.

    Either would see this worker's rows alone, of several.
    """
    extended = extended_of_model(model)
    if extended is None or extended.collectives.topology.num_workers == 1:
        return
    for metric in itertools.chain.from_iterable(map(_opened, model.metrics)):
        variables = [slices.tensorflows(variable) for variable in metric.variables]
        if any(slices.strategy_of(variable) is None for variable in variables):
            raise ValueError(
                f"the metric {metric.name!r} of the model {model.name!r} was made outside "
                "strategy.scope(), and sees one worker's rows alone. Make it inside `with "
                "strategy.scope():`."
            )
        apart = [v.name for v in variables if v.aggregation == tf.VariableAggregation.NONE]
        if apart and metric not in _told:
            _told.add(metric)
            logging.warning(
                "The metric %r of the model %r has variables that no other worker adds to, %s. If they "
                "change, it says what one worker has seen, and callbacks may decide otherwise on each: keep "
                "sums and counts in variables made by the metric's add_variable.",
                metric.name,
                model.name,
                apart,
            )


def _opened(known) -> list:
    """The metrics within one; of those that `compile` was given, also before they are built."""
    from keras.src import tree
    from keras.src.metrics import Metric
    from keras.src.trainers.compile_utils import CompileMetrics

    if not isinstance(known, CompileMetrics):
        return [known]
    given = tree.flatten([known._user_metrics, known._user_weighted_metrics])
    return known.metrics if known.built else [metric for metric in given if isinstance(metric, Metric)]


def _is_known(spec) -> bool:
    """Whether the shape of a component is, but for the number of rows; a ragged one's never is."""
    if not isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec)):
        return True
    return spec.shape.rank is not None and spec.shape[1:].is_fully_defined()
