"""Keras's BackupAndRestore: residuals beside the weights, and a backup that all workers go on from.

What has not been sent belongs to the weights of one step. A kill may come between their files, so that each
file is named by its step, it is written before the weights, and older ones are removed after them. One worker
has nothing to send, but may find what several have left.

In Keras 3 the chief writes, and the others send their shares. tf_keras's backups are checkpoints, of which
residuals become a part; it leaves a model that can be fitted again without one.
"""

import contextlib
import json
import os
import re

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import keras_building, keras_saving, saving
from tf_sparse_strategy.embedding import state as tables
from tf_sparse_strategy.hooking import built_layers, extended_of_model, optimizers_of, wrap
from tf_sparse_strategy.keras_file_callbacks import chief_only


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src import callbacks

    wrap(callbacks.BackupAndRestore, "on_train_begin", _begin_from_backup)
    wrap(callbacks.BackupAndRestore, "_save_model", _back_up)
    wrap(callbacks.BackupAndRestore, "on_train_end", chief_only)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src import callbacks
    from tf_keras.src.distribute import worker_training_state

    wrap(callbacks.BackupAndRestore, "on_train_end", _forget_training_state)
    wrap(worker_training_state.WorkerTrainingState, "__init__", _back_up_residual)


def _back_up(original, callback):
    keras_saving.require_newest_weights(callback.model)
    extended = extended_of_model(callback.model)
    written = None if extended is None else _residual_path(callback)
    if extended is not None:
        extended.gradients.memory.save(written, callback.model.variables)
    if keras_saving.is_follower(callback.model):
        tables.send_tables(callback.model)
        return
    more = {} if extended is None else {"residual": os.path.basename(written)}
    with _whole_metadata(callback, more):
        original(callback)
    if extended is not None:
        before = getattr(callback, "_residual_before", written) if callback.double_checkpoint else written
        for path in _residuals(callback):
            if path not in (written, before):
                tf.io.gfile.remove(path)
        callback._residual_before = written


@contextlib.contextmanager
def _whole_metadata(callback, more):
    """Keras writes the epoch's number in place: killed in between, it would leave what no start can read.

    `more` is written beside it.
    """
    path = callback._training_metadata_path
    partial = path + ".partial"
    if tf.io.gfile.exists(path):
        tf.io.gfile.copy(path, partial, overwrite=True)  # what Keras keeps where there are to be two backups
    callback._training_metadata_path = partial
    try:
        yield
    finally:
        callback._training_metadata_path = path
    told = _read(partial)
    with tf.io.gfile.GFile(partial, "w") as file:
        json.dump(told | more, file)
    tf.io.gfile.rename(partial, path, overwrite=True)


def _begin_from_backup(original, callback, logs=None):
    extended = extended_of_model(callback.model)
    if extended is None:
        original(callback, logs)
        return
    extended.collectives.barrier()  # the first may still be deleting what a fit before has left
    extended.gradients.memory.forget_gone()
    # Each file by itself: disks that are not shared may have been given some of them.
    saving.require_same(extended, callback._training_metadata_path)
    saving.load_together(extended, callback._weights_path, lambda _: _restore(original, callback, logs))
    path, others = _residual_path(callback), _residuals(callback)
    all_built = all(optimizer.built for optimizer in optimizers_of(callback.model))
    if path not in others and not all_built:  # Keras does not restore the steps of one that is built later
        told = _read(callback._training_metadata_path).get("residual", "")
        # Unless a later one tells of a kill between the files.
        latest = max(others, key=_step_of, default=path)
        path = latest if os.path.basename(latest) == told else path
    callback._residual_before, memory = path, extended.gradients.memory
    saving.load_together(extended, path, lambda p: memory.load(p, callback.model.variables))
    if others and path not in others:
        logging.warning(
            "%s is not there: what had not been sent when these weights were saved is lost; %s are of "
            "other weights.",
            path,
            others,
        )


def _read(path) -> dict:
    """A file of JSON, if there is one."""
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as file:
        return json.load(file)


def _restore(original, callback, logs):
    """Under the scope, where Keras may build the optimizer; not one that a step of one's own leaves alone."""
    model = callback.model
    divided = model.distribute_strategy.extended.chunked is not None  # and what a step uses is built
    is_built = getattr(model.optimizer, "built", True)
    is_unused = divided and not is_built and not keras_building.has_kerass_step(model)
    with model.distribute_strategy.scope(), keras_building.without_default_optimizer(model, is_unused):
        original(callback, logs)


def _residual_path(callback) -> str:
    """Of the file beside the weights of this step of the optimizers."""
    # Of all: a `train_step` of one's own may leave the compiled one alone.
    counts = [int(optimizer.iterations.numpy()) for optimizer in optimizers_of(callback.model)]
    return os.path.join(callback.backup_dir, f"residual-{sum(counts)}.npz")


def _residuals(callback) -> list[str]:
    """Such files of all steps; by name, as brackets in a directory's would be a pattern."""
    directory = callback.backup_dir
    names = tf.io.gfile.listdir(directory) if tf.io.gfile.exists(directory) else []
    return [os.path.join(directory, name) for name in names if re.fullmatch(r"residual-\d+\.npz", name)]


def _step_of(residual_path: str) -> int:
    return int(os.path.basename(residual_path).removeprefix("residual-").removesuffix(".npz"))


class _ResidualOf(tf.train.experimental.PythonState):
    """What a model's gradients have left, as a part of a checkpoint."""

    def __init__(self, model):
        self.distribute_strategy = model.distribute_strategy  # by which all workers take part
        self._memory, self._model = extended_of_model(model).gradients.memory, model

    def serialize(self) -> bytes:
        return self._memory.archive_of(self._variables)

    def deserialize(self, string_value: bytes) -> None:
        self._memory.restore(string_value, self._variables)

    @property
    def _variables(self) -> list:
        return [variable for layer in built_layers(self._model) for variable in layer.variables]


def _back_up_residual(original, training_state, model, checkpoint_dir, save_freq="epoch", on_notice=None):
    extended = extended_of_model(model)
    if extended is not None and not save_freq:
        raise ValueError(
            f"BackupAndRestore(save_freq={save_freq!r}, save_before_preemption={on_notice!r}) saves nothing: "
            "tf_keras knows of preemption under MultiWorkerMirroredStrategy alone. Give save_freq, e.g. 100."
        )
    original(training_state, model, checkpoint_dir, save_freq, on_notice)
    if extended is not None:
        training_state.read_checkpoint_manager.checkpoint.residual = _ResidualOf(model)


def _forget_training_state(original, callback, logs=None):
    original(callback, logs)
    if keras_saving.shared_by(callback.model) is not None:
        callback.model._training_state = None  # it deleted what the next fit looks for
