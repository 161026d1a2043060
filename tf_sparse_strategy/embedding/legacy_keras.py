"""ShardedEmbedding and LazyAdam of tf_keras (`TF_USE_LEGACY_KERAS=1`)."""

import tensorflow as tf
import tf_keras

from tf_sparse_strategy.embedding import lazy
from tf_sparse_strategy.embedding.table import ShardedTable
from tf_sparse_strategy.hooking import extended_of


@tf_keras.utils.register_keras_serializable(package="tf_sparse_strategy", name="ShardedEmbedding")
class ShardedEmbedding(ShardedTable, tf_keras.layers.Embedding):
    """tf_keras's Embedding, its table divided as by `tss.layers.ShardedEmbedding`, whose arguments it has.

    Args:
      input_dim, output_dim, *args: of `tf_keras.layers.Embedding`; sparse=True is refused.
      combiner, wire_dtype, ids_out_of_range: of `tss.layers.ShardedEmbedding`.
      **kwargs: of `tf_keras.layers.Layer`.

    Raises:
      ValueError: as by `tss.layers.ShardedEmbedding`, or sparse=True.

    Example:
      >>> layer = ShardedEmbedding(1000, 8, combiner="mean")
      >>> layer(tf.ragged.constant([[1, 5], [7]])).shape
      TensorShape([2, 8])

    Source: EmbRace (Li et al., ICPP 2022), section 4.1.
    """

    def build(self, input_shape=None):
        """Makes this worker's columns of the table. Collective."""
        extended = extended_of(tf.distribute.get_strategy())
        if self.built:
            return
        with tf.init_scope():  # `lookup_together` may be the first to ask, in a graph
            if extended is None:
                super().build(input_shape)
            else:
                with self._columns(extended) as arguments:
                    self.embeddings = self.add_weight(**arguments, experimental_autocast=False)
                self.built = True
            if self._initial_weights is not None:  # Keras sets them in calls alone: not `lookup_together`
                self.set_weights(self._initial_weights)
                self._initial_weights = None

    @property
    def embeddings(self):
        """The table, where one worker holds it all.

        Raises:
          AttributeError: the table is divided; a worker has no whole table to compute with.
        """
        self._require_whole()
        return self._embeddings

    @embeddings.setter
    def embeddings(self, table):
        # Not tracked twice: `add_weight` does, under the name that Embedding's checkpoints have.
        vars(self)["_embeddings"] = table

    def _preload_simple_restoration(self, name):
        """None: what a checkpoint holds for a table not made yet is whole, and no slice's initial value."""

    def compute_output_shape(self, input_shape):
        """[..., D], without the last dimension of the ids if they are combined."""
        kept = tuple(input_shape)[:-1] if self._options.combiner else tuple(input_shape)
        return tf.TensorShape((*kept, self.output_dim))


# tf_keras names the groups of a file by class: so a file of either class loads into the other.
ShardedEmbedding.__name__ = "Embedding"


@tf_keras.utils.register_keras_serializable(package="tf_sparse_strategy")
class LazyAdam(lazy.ClipsRows, tf_keras.optimizers.Adam):
    """tf_keras's Adam that leaves rows without a gradient as they are: `tss.optimizers.LazyAdam`.

    Args: those of `tf_keras.optimizers.Adam`, but for `amsgrad` and `weight_decay`, which would move every
      row.

    Raises:
      ValueError: one of those two is set.

    Example:
      >>> table = tf.Variable(tf.ones([3, 2]))
      >>> gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
      >>> _ = LazyAdam(0.1).apply_gradients([(gradient, table)])
      >>> [round(float(x), 3) for x in table[:, 0]]
      [1.0, 0.9, 1.0]

    Source: Kingma & Ba, ICLR 2015, algorithm 1, row by row, as in PyTorch's SparseAdam.
    """

    def __init__(self, learning_rate=0.001, *args, name="LazyAdam", **kwargs):
        super().__init__(learning_rate, *args, name=name, **kwargs)
        lazy.refuse_moving_all(self, ("amsgrad", "weight_decay"))

    def update_step(self, gradient, variable):
        """Updates the rows of `gradient`; called by tf_keras per variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable)
            return
        index = self._index_dict[self._var_key(variable)]
        slots = self._momentums[index], self._velocities[index]
        lazy.update_adam_rows(self, gradient, variable, slots, self.learning_rate)
