"""Saving a run after each epoch, and going on from there."""

import json
import os
from typing import Any

import tensorflow as tf

import tf_sparse_strategy as tss
from datacache.callbacks import restore_all, unseen
from examples.common.garden import IS_LEGACY
from examples.common.settings import Settings


class Saving(tf.keras.callbacks.Callback):
    """Keeps model, optimizer, seeds, what sparse communication has not sent yet, and the epoch.

    What `settings.output_dir` holds is restored at once, on all workers. `BackupAndRestore` would do for a
    single `fit`; here each phase is one, and the order of the examples follows from the epoch, which must be
    known before.

    Args:
      settings: of the run; all workers see its `output_dir`, of which the last checkpoint is kept.
      model: compiled and built.
      strategy: under which it was.
      **lasting: what else a run that goes on must have in common with the one before.

    Raises:
      ValueError: the checkpoint is of a run with other lasting settings, or of another model.
    """

    def __init__(
        self, settings: Settings, model: tf.keras.Model, strategy: tss.SparseStrategy, **lasting: Any
    ):
        super().__init__()
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        # Keras 3 and tf_keras name what is in a checkpoint otherwise: nothing of the other one's is found.
        self._settings = settings.lasting() | lasting | {"TF_USE_LEGACY_KERAS": IS_LEGACY}
        self._saved: dict[str, Any] = {}
        self._is_first = strategy.topology.rank == 0
        directory = os.path.join(settings.output_dir, "checkpoints")
        self._settings_file = os.path.join(directory, "settings.json")
        kept = {"model": model, "optimizer": model.optimizer, "seeds": unseen(model)}
        checkpoint = tf.train.Checkpoint(residual=strategy.residual, epoch=self._epoch, **kept)
        self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=1)
        latest = self._manager.latest_checkpoint
        if latest:
            self._check()
        problem = f"{directory} holds a checkpoint of another model"
        restore_all(checkpoint, latest, f"{problem}: leave out --resume, or give another --output_dir.")

    def _check(self):
        if not tf.io.gfile.exists(self._settings_file):
            return
        with tf.io.gfile.GFile(self._settings_file) as file:
            self._saved = json.load(file)
        for name, value in self._settings.items():
            if self._saved.get(name, value) != value:
                raise ValueError(
                    f"{name}={value!r} must be {self._saved[name]!r}, as in the run that "
                    f"{self._manager.directory} holds; or leave out --resume, or give another --output_dir."
                )

    @property
    def epoch(self) -> int:
        """The first that is not done."""
        return int(self._epoch.numpy())

    def on_epoch_end(self, epoch, logs=None):
        """Saves; called by Keras, on all workers."""
        known = self._saved | self._settings  # of epochs that only an earlier run had, too
        if self._is_first and known != self._saved:
            tf.io.gfile.makedirs(self._manager.directory)
            with tf.io.gfile.GFile(self._settings_file + ".partial", "w") as file:
                json.dump(known, file)
            tf.io.gfile.rename(self._settings_file + ".partial", self._settings_file, overwrite=True)
            self._saved = known
        self._epoch.assign(epoch + 1)
        self._manager.save()


def resumed(
    settings: Settings, model: tf.keras.Model, strategy: tss.SparseStrategy, **lasting: Any
) -> tuple[int, list[Saving]]:
    """(The first epoch that is not done, callbacks that keep the run); 0 and none without `--resume`.

    Args: see `Saving`.
    """
    if not settings.resume:
        return 0, []
    saving = Saving(settings, model, strategy, **lasting)
    return saving.epoch, [saving]
