"""ShardedEmbedding: Keras 3's Embedding whose table is divided by columns over the workers."""

import keras
import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.table import ShardedTable
from tf_sparse_strategy.hooking import extended_of


@keras.saving.register_keras_serializable(package="tf_sparse_strategy", name="ShardedEmbedding")
class ShardedEmbedding(ShardedTable, keras.layers.Embedding):
    """Keras's Embedding, for tables too large to be on every worker or to be reduced in every step.

    Under a `SparseStrategy` of P workers each holds D/P columns of the table [L, D] and of its slots. In a
    step with u distinct ids per worker and s bytes per element it sends

        2 (P-1)/P u D s + 4 (P-1) (u + 1) bytes

    for the rows and for their gradients, in three collectives; where several nodes have equally many workers,
    more than one, in six, with fewer bytes between nodes (docs/embedding.md). The table is never reduced.
    Initial values, results, files and checkpoints are those of the whole table, whatever P is; with one
    worker, or without the strategy, it is an ordinary Embedding. It does not pay for tables with fewer rows
    than a step has ids, nor for rows so short that their ids weigh as much.

    All workers must call it together, and so what reads or saves the table: see docs/embedding.md.

    Args:
      input_dim: L, number of rows; under the strategy below 2^31.
      output_dim: D, number of columns.
      embeddings_initializer: draws the whole table; default "uniform".
      embeddings_regularizer: a sum over elements: "l1", "l2", L1L2; or None (default).
      embeddings_constraint: acts on elements or columns: NonNeg, or a norm over axis 0; or None (default).
      mask_zero: whether id 0 is padding, for layers that support masks; default False. Not with a combiner.
      weights: [L, D], initial table; None (default) to draw it.
      combiner: "sum", "mean" or "sqrtn" makes one row of the ids along the last dimension (which may be
        ragged or sparse), weighted by `call`'s `weights`; None, the default, keeps each.
      wire_dtype: "float16" or "bfloat16" halve the bytes and round rows and gradients; sums are still
        in the table's dtype. "float32" is allowed, too. None (default): rows travel in the layer's compute
        dtype, gradients in the table's.
      ids_out_of_range: "error" (default), or "clip" to take the nearest row. Negative ids count from the end.
      **kwargs: of `keras.layers.Layer`; `lora_rank` without a strategy only.

    Raises:
      ValueError: an argument is none of those, or cannot be had on slices of the table; or, in training, the
        optimizer needs more than each element by itself.

    Example:
      >>> layer = ShardedEmbedding(1000, 8, combiner="mean")
      >>> layer(tf.ragged.constant([[1, 5], [7]])).shape
      TensorShape([2, 8])

    Source: EmbRace (Li et al., ICPP 2022), section 4.1.
    """

    def build(self, input_shape=None):
        """Makes this worker's columns of the table. Collective."""
        extended = extended_of(tf.distribute.get_strategy())
        self._refuse("quantization needs the whole matrix" if self.quantization_mode else None)
        if self.built or extended is None:
            return super().build(input_shape)
        self._refuse("lora_rank needs the whole matrix" if self.lora_rank else None)
        # A step may be the first to ask, in a graph.
        with tf.init_scope(), self._columns(extended) as arguments:
            self._embeddings = self.add_weight(**arguments, aggregation="none")
        if self._embeddings._value is None:
            self._workers_later = extended.collectives.topology.num_workers
            _make_later(self._embeddings, self._columns, extended)
        self.built = True
        return None

    @property
    def embeddings(self):
        """The table, where one worker holds it all.

        Raises:
          AttributeError: the table is divided; a worker has no whole table to compute with.
        """
        self._require_whole()
        return super().embeddings

    def enable_lora(self, *args, **kwargs):
        """As Keras's, without a strategy."""
        divided = self.built and slices.of(self._embeddings) is not None
        self._refuse("LoRA needs the whole matrix" if divided else None)
        super().enable_lora(*args, **kwargs)

    def quantize(self, *args, **kwargs):
        """Refused, as by Keras for all classes but its own; `Model.quantize` leaves the layer as it is."""
        raise NotImplementedError(f"{self.name!r}, a ShardedEmbedding: quantization needs the whole matrix.")

    def compute_output_shape(self, input_shape, weights_shape=None):
        """[..., D], without the last dimension of the ids if they are combined."""
        kept = input_shape[:-1] if self._options.combiner else input_shape
        return (*kept, self.output_dim)

    def compute_output_spec(self, inputs, weights=None):
        """What `call` returns, for inputs without values."""
        shape = self.compute_output_shape(inputs.shape)
        ragged = getattr(inputs, "ragged", False) and not self._options.combiner
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)


# Keras names the groups of a file by class: so a file of either class loads into the other.
ShardedEmbedding.__name__ = "Embedding"


def _make_later(variable, columns, extended):
    """While Keras infers shapes of a model of one's own, it puts off making variables, past `columns`."""
    make, draw = variable._initialize_with_initializer, variable._initializer

    def make_slice(_):
        with columns(extended):
            make(draw)

    variable._initialize_with_initializer = make_slice
    variable._initializer = tf.zeros  # if it is read until then: what is drawn is kept for the next slice
