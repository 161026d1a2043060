"""Epochs of Keras: when they begin, how long they are, and what their logs say.

| Keras function                    | trouble                                   | what we do        |
|-----------------------------------|-------------------------------------------|-------------------|
| TFEpochIterator.__init__, reset   | counts batches of the undivided data      | end with the data |
| tf_keras: DataHandler._configure… | the same                                  | the same          |
| Trainer._maybe_symbolic_build     | takes a batch, and others, from the data  | ask for its shapes|
| CallbackList.on_epoch_begin       | communication may change by epochs        | tell which begins |
| Trainer._get_metrics_result_…     | logs of a step of one's own are a worker's| average them      |
| tf_keras: Model._validate_and_…   | the same                                  | the same          |
"""

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.hooking import extended_of, model_of, wrap


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.callbacks import callback_list

    wrap(callback_list.CallbackList, "on_epoch_begin", _begin_epoch)
    for method in ("__init__", "reset"):
        wrap(trainer.TFEpochIterator, method, _end_with_the_data)
    wrap(trainer.TensorFlowTrainer, "_maybe_symbolic_build", _build_by_shapes)
    wrap(trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", _average_own_logs_of_keras3)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src import callbacks
    from tf_keras.src.engine import data_adapter, training

    wrap(callbacks.CallbackList, "on_epoch_begin", _begin_epoch)
    wrap(data_adapter.DataHandler, "_configure_dataset_and_inferred_steps", _infer_no_steps)
    wrap(training.Model, "_validate_and_get_metrics_result", _average_own_logs)


def _begin_epoch(original, callbacks, epoch, logs=None):
    extended = extended_of(getattr(model_of(callbacks), "distribute_strategy", None))
    if extended is not None:
        extended.gradients.memory.begin_epoch(epoch)
    return original(callbacks, epoch, logs)


def _end_with_the_data(original, iterator, *args, **kwargs):
    original(iterator, *args, **kwargs)
    dataset = getattr(iterator, "_distributed_dataset", None)
    if not getattr(dataset, "ends_with_the_data", False):
        return
    # With `steps_per_epoch` Keras begins anew when it has seen as many batches as it counts.
    counted = None if iterator.steps_per_epoch is None or dataset.undivided < 0 else dataset.undivided
    iterator._num_batches = counted


def _build_by_shapes(original, model, iterator=None, data_batch=None):
    """As of a batch that Keras would read, and not put back: generators and PyDatasets go on behind it."""
    extended = extended_of(model.distribute_strategy)
    if extended is None or iterator is None or model.run_eagerly:  # what runs eagerly may ask for sizes
        return original(model, iterator=iterator, data_batch=data_batch)
    specs = extended.local_value(iterator._distributed_dataset.element_spec)
    is_built = all(layer.built for layer in model._flatten_layers())
    if not is_built and not all(_is_known(spec) for spec in tf.nest.flatten(specs)):
        return original(model, iterator=iterator)  # weights may have shapes of the data
    batch = tf.nest.map_structure(lambda s: s if hasattr(s, "shape") else None, specs)  # None: not given
    with model.distribute_strategy.scope():
        return model._symbolic_build(data_batch=batch)


def _is_known(spec) -> bool:
    """Whether the shape of a component is, but for the number of rows; a ragged one's never is."""
    if not isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec)):
        return True
    return spec.shape.rank is not None and spec.shape[1:].is_fully_defined()


def _infer_no_steps(original, handler, strategy, x, steps_per_epoch, class_weight, distribute):
    original(handler, strategy, x, steps_per_epoch, class_weight, distribute)
    if steps_per_epoch is None and getattr(handler._dataset, "ends_with_the_data", False):
        handler._inferred_steps = None


def _average_own_logs(original, model, logs, known=dict):
    """Or `EarlyStopping` would end some workers, and `ReduceLROnPlateau` give them rates of their own.

    Args:
      original, model, logs: as Keras calls it; logs within logs are as good as others.
      known: returns the results of the model's metrics, over all workers or, in a replica, of this one.
    """
    result = original(model, logs)
    extended = extended_of(getattr(model, "distribute_strategy", None))
    if extended is None or result is not logs or not isinstance(logs, dict):
        return result
    numbers, workers = dict(_numbers(logs)), extended.collectives.topology.num_workers
    if workers == 1 or not numbers:
        return result
    of_all, of_this = (dict(_numbers(results)) for results in (known(), extended.in_replica(known)))
    own = tf.stack([tf.cast(value, tf.float64) for value in numbers.values()])
    # What a metric of the model says here, or a number that only has its name.
    told = [_same(value, of_this.get(name)) and name in of_all for name, value in numbers.items()]
    weight = extended.last_weight()  # 0 where the last step's row counted for nothing, whatever it gave
    means, tellers = extended.collectives.all_reduce(
        tf.stack([tf.where(weight > 0, own * weight, tf.zeros_like(own)), tf.cast(told, tf.float64)]),
        purpose="logs",
    ).numpy()
    means = dict(zip(numbers, means.tolist(), strict=True))
    metrics = [n for n, count in zip(numbers, tellers, strict=True) if count == workers]
    return _with(logs, means | {name: of_all[name] for name in metrics})


def _average_own_logs_of_keras3(original, model, logs):
    """Its metrics give a worker's own result in a step, and that of all outside."""
    return _average_own_logs(original, model, logs, model.get_metrics_result)


def _numbers(logs):
    """(name, scalar) in `logs`, and in logs within them, in an order that is the same on all workers."""
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            yield from _numbers(value)
        elif _is_number(value):
            yield name, value


def _with(logs, values):
    return {
        name: _with(value, values) if isinstance(value, dict) else values.get(name, value)
        for name, value in logs.items()
    }


def _same(value, other) -> bool:
    return other is not None and bool(np.isclose(float(value), float(other), equal_nan=True))


def _is_number(value) -> bool:
    if not (isinstance(value, (int, float)) or hasattr(value, "dtype")):
        return False
    value = tf.convert_to_tensor(value)
    return value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
