"""Epochs of Keras: when they begin, how long they are, and what their logs say.

| Keras function                    | trouble                                   | what we do        |
|-----------------------------------|-------------------------------------------|-------------------|
| TFEpochIterator.__init__, reset   | counts batches of the undivided data      | end with the data |
| tf_keras: DataHandler._configure… | the same                                  | the same          |
| CallbackList.on_epoch_begin       | communication may change by epochs        | tell which begins |
| Trainer._get_metrics_result_…     | logs of a step of one's own are a worker's| average them      |
| tf_keras: Model._validate_and_…   | the same                                  | the same          |
"""

import tensorflow as tf

from tf_sparse_strategy.hooking import extended_of, model_of, wrap


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.callbacks import callback_list

    wrap(callback_list.CallbackList, "on_epoch_begin", _begin_epoch)
    for method in ("__init__", "reset"):
        wrap(trainer.TFEpochIterator, method, _end_with_the_data)
    wrap(trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", _average_own_logs)


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


def _infer_no_steps(original, handler, strategy, x, steps_per_epoch, class_weight, distribute):
    original(handler, strategy, x, steps_per_epoch, class_weight, distribute)
    if steps_per_epoch is None and getattr(handler._dataset, "ends_with_the_data", False):
        handler._inferred_steps = None


def _average_own_logs(original, model, logs):
    """Or `EarlyStopping` would end some workers, and `ReduceLROnPlateau` give them rates of their own."""
    result = original(model, logs)
    extended = extended_of(getattr(model, "distribute_strategy", None))
    if extended is None or result is not logs or not isinstance(logs, dict):
        return result
    names = sorted(name for name, value in logs.items() if _is_number(value))
    if extended.collectives.topology.num_workers == 1 or not names:
        return result
    own = tf.stack([tf.cast(logs[name], tf.float64) for name in names])
    weight = extended.last_weight()  # 0 where the last step's row counted for nothing, whatever it gave
    own = tf.where(weight > 0, own * weight, tf.zeros_like(own))
    means = extended.collectives.all_reduce(own, purpose="logs")
    return {**logs, **dict(zip(names, means.numpy().tolist(), strict=True))}


def _is_number(value) -> bool:
    if not (isinstance(value, (int, float)) or hasattr(value, "dtype")):
        return False
    value = tf.convert_to_tensor(value)
    return value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
