"""A model as users of Horovod train it with Keras 3."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


class Model(keras.Model):
    """Sums gradients by Horovod's tape in its own `train_step`: Keras 3 never calls Horovod's optimizer.

    Attributes:
      as_dense: whether gradients of embeddings are summed as dense ones; else all workers gather all rows.
    """

    as_dense = False

    def train_step(self, data):
        """One step on this worker's rows."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=self.as_dense)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}
