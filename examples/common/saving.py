"""Saving a run after each epoch, and going on from there."""

import os

import tensorflow as tf

import tf_sparse_strategy as tss
from datacache.callbacks import seed_states


class Saving(tf.keras.callbacks.Callback):
    """Keeps model, optimizer, seeds, what sparse communication has not sent yet, and the epoch.

    What `directory` holds is restored at once, on all workers. `BackupAndRestore` would do for a single
    `fit`; here each phase is one, and the order of the images follows from the epoch, which must be known
    before.

    Args:
      directory: that all workers see; the last checkpoint is kept.
      model: compiled and built.
      strategy: under which it was.
    """

    def __init__(self, directory: str, model: tf.keras.Model, strategy: tss.SparseStrategy):
        super().__init__()
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        kept = {"model": model, "optimizer": model.optimizer, "seeds": seed_states(model)}
        checkpoint = tf.train.Checkpoint(residual=strategy.residual, epoch=self._epoch, **kept)
        self._manager = tf.train.CheckpointManager(checkpoint, os.fspath(directory), max_to_keep=1)
        self._manager.restore_or_initialize()

    @property
    def epoch(self) -> int:
        """The first that is not done."""
        return int(self._epoch.numpy())

    def on_epoch_end(self, epoch, logs=None):
        """Saves; called by Keras, on all workers."""
        self._epoch.assign(epoch + 1)
        self._manager.save()
