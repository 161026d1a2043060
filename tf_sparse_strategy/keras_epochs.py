"""Epochs of Keras: when they begin, how long they are, and what their logs say.

| Keras function                    | trouble                                   | what we do        |
|-----------------------------------|-------------------------------------------|-------------------|
| TFEpochIterator.__init__, reset   | counts batches of the undivided data      | end with the data |
| tf_keras: DataHandler._configure… | the same                                  | the same          |
| both                              | workers with other numbers of steps hang  | compare them      |
| ArrayDataAdapter.get_tf_dataset   | one order in all epochs, by our seed      | shuffle anew      |
| tf_keras: TensorLikeDataAdapter   | one order in all calls of `fit`           | the same          |
| PyDatasetAdapter.on_epoch_end     | what is ahead draws, then workers shuffle | draw from one on  |
| tf_keras: KerasSequenceAdapter.…  | its threads shuffle once more, or not     | read by one       |
| tf_keras: Model._in_multi_worker_…| predicts by rows what is a worker's own   | leave the policy  |
| tf_keras: StepsPerExecutionTuner… | tunes by each worker's own clock          | refuse            |
| CallbackList.on_epoch_begin       | communication may change by epochs        | tell which begins |
| Trainer._get_metrics_result_…     | logs of a step of one's own are a worker's| average them      |
| tf_keras: Model._validate_and_…   | the same                                  | the same          |
"""

import contextlib
import threading
import warnings

import numpy as np
import tensorflow as tf
from absl import logging

from tf_sparse_strategy import agreement
from tf_sparse_strategy.hooking import (
    built_layers,
    extended_of,
    extended_of_model,
    model_of,
    ours,
    while_set,
    wrap,
)
from tf_sparse_strategy.keras_building import require_metrics_of_all


class _Making(threading.local):
    extended = None  # for whom this thread makes an iterator


_making = _Making()


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.callbacks import callback_list
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    wrap(ArrayDataAdapter, "get_tf_dataset", _shuffle_each_epoch_anew)
    wrap(PyDatasetAdapter, "on_epoch_end", _follow_first_between_epochs)
    wrap(callback_list.CallbackList, "on_epoch_begin", _begin_epoch)
    wrap(trainer.TFEpochIterator, "__init__", _make_iterator)
    wrap(trainer.TFEpochIterator, "reset", _reset_iterator)
    wrap(trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", _average_own_logs_of_keras3)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src import callbacks
    from tf_keras.src.engine import data_adapter, training
    from tf_keras.src.utils import steps_per_execution_tuning

    wrap(data_adapter.TensorLikeDataAdapter, "__init__", _shuffle_each_fit_anew)
    for adapter in (data_adapter.GeneratorDataAdapter, data_adapter.KerasSequenceAdapter):
        wrap(adapter, "_handle_multiprocessing", _without_threads)
    wrap(steps_per_execution_tuning.StepsPerExecutionTuner, "start", _refuse_own_clocks)
    wrap(callbacks.CallbackList, "on_epoch_begin", _begin_epoch)
    wrap(data_adapter.DataHandler, "_configure_dataset_and_inferred_steps", _infer_no_steps)
    wrap(training.Model, "_validate_and_get_metrics_result", _average_own_logs_of_tf_keras)
    wrap(training.Model, "_in_multi_worker_mode", _leave_policy)


def _leave_policy(original, model):
    """By this tf_keras decides whether `predict` shares out by rows, whatever the user has asked for."""
    return extended_of_model(model) is None and original(model)


def _begin_epoch(original, callbacks, epoch, logs=None):
    model = model_of(callbacks)
    extended = extended_of_model(model)
    if extended is not None:
        built = built_layers(model)
        trained = [variable for layer in built for variable in layer.trainable_variables]
        frozen = [variable for layer in built for variable in layer.non_trainable_variables]
        extended.gradients.memory.begin_epoch(epoch, trained, frozen)
    return original(callbacks, epoch, logs)


def _make_iterator(original, iterator, distribute_strategy=None, *args, **kwargs):
    extended = extended_of(distribute_strategy)
    with while_set(_making, extended=extended):
        original(iterator, distribute_strategy, *args, **kwargs)
    _end_with_the_data(iterator)
    if extended is not None:
        dataset = getattr(iterator, "_distributed_dataset", None)
        _warn_of_rest(dataset, iterator.steps_per_epoch, extended)
        iterator.data_adapter.divided_by = extended
        _require_as_many_steps(iterator.steps_per_epoch or iterator._num_batches, extended)


def _reset_iterator(original, iterator):
    original(iterator)
    _end_with_the_data(iterator)


def _end_with_the_data(iterator):
    dataset = getattr(iterator, "_distributed_dataset", None)
    if getattr(dataset, "ends_with_the_data", False):
        # With `steps_per_epoch` Keras begins anew when it has seen as many batches as it counts.
        counted = None if iterator.steps_per_epoch is None or dataset.undivided < 0 else dataset.undivided
        iterator._num_batches = counted


def _warn_of_rest(dataset, steps, extended):
    by_files = getattr(dataset, "ends_with_the_data", False)
    if by_files and steps == dataset.undivided and extended.collectives.topology.rank == 0:
        text = (
            "steps_per_epoch=%d is as many batches as the data has: where files that the workers share out "
            "differ in length, who has most rows leaves some out. Without steps_per_epoch all are read."
        )
        logging.log_first_n(logging.WARNING, text, 1, steps)


def _require_as_many_steps(steps, extended):
    """Or some would wait for the others' next one."""
    if extended.collectives.topology.num_workers > 1:
        remedy = (
            "Give fit, evaluate and predict the same data, all of it, and the same steps on all workers: the "
            "strategy gives each its rows of every batch."
        )
        steps = None if steps is None else int(steps)
        agreement.require_same({"steps of an epoch": steps}, extended.collectives, remedy)


def _shuffle_each_epoch_anew(original, adapter):
    """Where the user has set no seed, as in one process; TensorFlow's, once set, makes all epochs alike."""
    with _shuffling_anew(adapter, _making.extended, adapter._shuffle, tf.random):
        return original(adapter)


def _shuffle_each_fit_anew(original, adapter, *args, **kwargs):
    """Its epochs do differ."""
    from tf_keras.src.engine import data_adapter

    extended = extended_of(kwargs.get("distribution_strategy"))
    with _shuffling_anew(adapter, extended, kwargs.get("shuffle"), data_adapter.tf.random):
        return original(adapter, *args, **kwargs)


@contextlib.contextmanager
def _shuffling_anew(adapter, extended, shuffles, random):
    """Its dataset, made in this context, is shuffled otherwise than those before."""
    of_rows = shuffles and shuffles != "batch"  # of which many draw side by side
    shuffle = extended.shuffles.another() if extended is not None and of_rows else None
    if shuffle is None:
        yield
        return
    adapter._shuffles_rows = shuffle  # it holds what the dataset needs
    with while_set(random, shuffle=shuffle):
        yield


def _follow_first_between_epochs(original, adapter):
    """A PyDataset is read ahead, on each worker as far as time allows, and may draw while it is.

    From the same generators of Python and NumPy it is shuffled, by Keras or by itself, before the next epoch.
    """
    extended = getattr(adapter, "divided_by", None)
    if extended is not None:
        if adapter.enqueuer is not None:  # its threads go on drawing
            adapter.enqueuer.stop()
        extended.follow_first()
    return original(adapter)


def _without_threads(original, adapter, x, workers, use_multiprocessing, max_queue_size):
    """In tf_keras: a `Sequence`, which threads shuffle once more, or not, as an epoch ends; a generator."""
    if ours(tf.distribute.get_strategy()) is not None and (workers > 1 or use_multiprocessing):
        warnings.warn(
            f"workers={workers}, use_multiprocessing={use_multiprocessing}: threads of tf_keras would give a "
            "Sequence or a generator another order on each worker, so it is read by one. Use "
            "keras.utils.PyDataset of Keras 3, or tf.data.",
            stacklevel=2,
        )
        workers, use_multiprocessing = 1, False
    return original(adapter, x, workers, use_multiprocessing, max_queue_size)


def _refuse_own_clocks(original, tuner):
    """Workers that make other numbers of steps in a call wait for each other for ever."""
    if ours(tf.distribute.get_strategy()) is not None:
        raise ValueError(
            "steps_per_execution='auto' is tuned by each worker's own clock; with several workers pass a "
            "number to compile()."
        )
    return original(tuner)


def _infer_no_steps(original, handler, strategy, x, steps_per_epoch, class_weight, distribute):
    original(handler, strategy, x, steps_per_epoch, class_weight, distribute)
    if steps_per_epoch is None and getattr(handler._dataset, "ends_with_the_data", False):
        handler._inferred_steps = None
        handler._validate_data_handler()  # again: calls of several steps need the number of all
    extended = extended_of(strategy)
    if extended is not None and distribute:  # else a layer adapts to data
        _warn_of_rest(handler._dataset, steps_per_epoch, extended)
        _require_as_many_steps(handler._inferred_steps, extended)


def _average_own_logs(original, model, logs, known=dict):
    """Or `EarlyStopping` would end some workers, and `ReduceLROnPlateau` give them rates of their own.

    Args:
      original, model, logs: as Keras calls it; logs within logs are as good as others.
      known: returns the results of the model's metrics, over all workers or, in a replica, of this one.
    """
    result = original(model, logs)
    extended = extended_of_model(model)
    if extended is None or result is not logs or not isinstance(logs, dict):
        return result
    found, workers = dict(_leaves(logs)), extended.collectives.topology.num_workers
    if workers == 1 or not found:
        return result
    of_all, of_this = (dict(_leaves(results)) for results in (known(), extended.in_replica(known)))
    own = tf.stack([tf.cast(0 if value.shape.rank else value, tf.float64) for value in found.values()])
    weight = extended.last_weight()  # 0 where the last step's row counted for nothing, whatever it gave
    weighted = tf.where(weight > 0, own * weight, tf.zeros_like(own))
    # What a metric of the model says here, under its name or another; or a number that only has the name.
    metrics = sorted(of_all)
    told = [[_same(value, of_this.get(metric)) for metric in metrics] for value in found.values()]
    told = tf.reshape(tf.cast(told, tf.float64), [len(found), len(metrics)])
    message = tf.concat([weighted[:, tf.newaxis], told], axis=1)
    values = {}
    for name, (mean, *tellers) in zip(
        found, extended.collectives.all_reduce(message, purpose="logs").numpy().tolist(), strict=True
    ):
        saying = [metric for metric, count in zip(metrics, tellers, strict=True) if count == workers]
        said = name if name in saying else next(iter(saying), None)
        if said is not None:
            values[name] = of_all[said]
        elif found[name].shape.rank == 0:
            values[name] = mean
    return _with(logs, values)


def _average_own_logs_of_tf_keras(original, model, logs):
    """Once its metrics are built, after an epoch."""
    require_metrics_of_all(model)
    return _average_own_logs(original, model, logs)


def _average_own_logs_of_keras3(original, model, logs):
    """Its metrics give a worker's own result in a step, and that of all outside."""
    require_metrics_of_all(model)  # what was not built by shapes is built now
    return _average_own_logs(original, model, logs, model.get_metrics_result)


def _leaves(logs):
    """(name, tensor) of numbers in `logs`, and in logs within them; in the same order on all workers."""
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            yield from _leaves(value)
        elif isinstance(value, (int, float)) or hasattr(value, "dtype"):
            value = tf.convert_to_tensor(value)
            if value.dtype.is_floating or value.dtype.is_integer:
                yield name, value


def _with(logs, values):
    return {
        name: _with(value, values) if isinstance(value, dict) else values.get(name, value)
        for name, value in logs.items()
    }


def _same(value, other) -> bool:
    if other is None or value.shape != other.shape:
        return False
    return np.allclose(*(tf.cast(x, tf.float64) for x in (value, other)), atol=0, equal_nan=True)
