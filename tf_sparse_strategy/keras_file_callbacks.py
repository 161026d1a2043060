"""Keras's callbacks that write files, under several workers (saving.py has the rules for users).

Keras 3 knows no chief: each worker would write the same files. tf_keras does, and lets the others write into
directories beside the chief's.

| Keras function                    | on a worker that is not the chief                    |
|-----------------------------------|------------------------------------------------------|
| ModelCheckpoint                   | keeps `best` (Keras 3); judges as the chief where    |
|                                   | all save                                             |
| CSVLogger                         | does nothing                                         |
| TensorBoard (Keras 3)             | writes into a private directory, deleted at the end  |
| temporary directories of tf_keras | are private, instead of beside the chief's files     |
"""

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile

import tensorflow as tf

from tf_sparse_strategy import keras_saving
from tf_sparse_strategy.embedding import state as tables
from tf_sparse_strategy.hooking import ours, while_set, wrap


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src import callbacks

    wrap(callbacks.OrbaxCheckpoint, "set_model", _refuse_orbax)
    wrap(callbacks.ModelCheckpoint, "_save_model", _keep_best)
    wrap(callbacks.ModelCheckpoint, "_should_save_model", _decide_by_chief)
    _wrap_csv_logger(callbacks.CSVLogger)
    wrap(callbacks.TensorBoard, "set_model", _log_privately)
    wrap(callbacks.TensorBoard, "on_train_end", _delete_private_log)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src import callbacks
    from tf_keras.src.distribute import distributed_file_utils

    wrap(callbacks.ModelCheckpoint, "_save_model", _judge_as_the_chief)
    _wrap_csv_logger(callbacks.CSVLogger)
    wrap(callbacks.TensorBoard, "_start_trace", _profile_privately)
    wrap(distributed_file_utils, "_get_temp_dir", _private_temp_dir)
    wrap(distributed_file_utils, "remove_temp_dirpath", _keep_private_temp_dir)


def _wrap_csv_logger(csv_logger) -> None:
    for method in ("on_train_begin", "on_epoch_end", "on_train_end"):
        wrap(csv_logger, method, chief_only)


def chief_only(original, callback, *args, **kwargs):
    """A hook on a callback's method: nothing on the other workers."""
    return None if keras_saving.is_follower(callback.model) else original(callback, *args, **kwargs)


def _refuse_orbax(original, callback, model):
    if ours(getattr(model, "distribute_strategy", None)) is not None:
        raise NotImplementedError(
            "keras.callbacks.OrbaxCheckpoint coordinates workers on JAX alone: here each would write into "
            "its directory. Use keras.callbacks.BackupAndRestore, or ModelCheckpoint."
        )
    return original(callback, model)


def _keep_best(original, callback, epoch, batch, logs):
    if not keras_saving.is_follower(callback.model):
        return original(callback, epoch, batch, logs)
    path = callback._get_file_path(epoch, batch, logs)
    due = callback._should_save_model(epoch, batch, logs, path)
    if due:
        keras_saving.require_newest_weights(callback.model)
        if str(path).endswith((".h5", ".hdf5")) and not callback.save_weights_only:
            keras_saving.refuse_parts(callback.model)  # as the chief will, whom it would wait for
        keras_saving.leave_to_the_chief(callback.model, path)
    return due


def _decide_by_chief(original, callback, *args):
    """Where all must save: of batches, `save_freq=100`, each worker has logs of its own."""
    due, table = original(callback, *args), tables.of_training(callback.model)
    if table is None:
        return due
    return bool(table.slices.collectives.broadcast(tf.constant(int(due)), purpose="checkpoint"))


def _judge_as_the_chief(original, callback, epoch, batch, logs):
    """tf_keras's `save_best_only`, where all must save: logs of batches are each worker's own."""
    table, name = tables.of_training(callback.model), callback.monitor
    if table is not None and batch is not None and callback.save_best_only and name in (logs or {}):
        own = tf.constant(float(logs[name]), tf.float64)
        logs = {**logs, name: float(table.slices.collectives.broadcast(own, purpose="checkpoint"))}
    return original(callback, epoch, batch, logs)


@functools.cache
def _private_root() -> tempfile.TemporaryDirectory:
    """Made once per process and deleted with it."""
    return tempfile.TemporaryDirectory(prefix="not_chief_")


def _private(directory: str) -> str:
    name = hashlib.blake2b(os.path.abspath(directory).encode(), digest_size=8).hexdigest()
    return os.path.join(_private_root().name, name)


def _private_temp_dir(original, dirpath, strategy):
    if ours(strategy) is None or dirpath.startswith(_private_root().name):
        return original(dirpath, strategy)
    private = original(_private(dirpath), strategy)
    keras_saving.stands_for(private, dirpath)
    return private


def _keep_private_temp_dir(original, dirpath, strategy):
    """Which several callbacks may share: a checkpoint's would delete TensorBoard's open file."""
    if ours(strategy or tf.distribute.get_strategy()) is None:
        original(dirpath, strategy)


def _profile_privately(original, callback):
    with while_set(callback, log_dir=callback._log_write_dir):
        original(callback)


def _log_privately(original, callback, model):
    if not keras_saving.is_follower(model):
        return original(callback, model)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, callback, "log_dir", callback.log_dir)
        callback.log_dir = _private(callback.log_dir)
        return original(callback, model)


def _delete_private_log(original, callback, logs=None):
    original(callback, logs)
    if keras_saving.is_follower(callback.model):
        shutil.rmtree(_private(callback.log_dir), ignore_errors=True)
