"""ShardedEmbedding: Keras 3's Embedding whose table is divided by columns over the workers."""

import keras
import tensorflow as tf

from tf_sparse_strategy import agreement
from tf_sparse_strategy.embedding import inputs as input_kinds
from tf_sparse_strategy.embedding import separable, slices
from tf_sparse_strategy.embedding.combiner import COMBINERS
from tf_sparse_strategy.embedding.lookup import Request, lookup
from tf_sparse_strategy.embedding.partition import ColumnPartition
from tf_sparse_strategy.hooking import extended_of

_DEFAULTS = {"combiner": None, "wire_dtype": None, "ids_out_of_range": "error"}
_WIRE_DTYPES = (None, "float16", "bfloat16", "float32")


@keras.saving.register_keras_serializable(package="tf_sparse_strategy", name="ShardedEmbedding")
class ShardedEmbedding(keras.layers.Embedding):
    """Keras's Embedding, for tables too large to be on every worker or to be reduced in every step.

    Under a `SparseStrategy` of P workers each holds D/P columns of the table [L, D] and of its slots. In a
    step with u distinct ids per worker and s bytes per element it sends

        2 (P-1)/P u D s + 4 (P-1) (u + 1) bytes

    for the rows and for their gradients; the table is never reduced. Initial values, results, files and
    checkpoints are those of the whole table, whatever P is; with one worker, or without the strategy, it is
    an ordinary Embedding. It does not pay for tables with fewer rows than a step has ids, nor for rows so
    short that their ids weigh as much: `tss.shard_embeddings` leaves those whole.

    All workers must call it together, and so what reads or saves the table: see docs/embedding.md.

    Args:
      input_dim: L, number of rows.
      output_dim: D, number of columns.
      embeddings_initializer: draws the whole table.
      embeddings_regularizer: a sum over elements: "l1", "l2", L1L2.
      embeddings_constraint: acts on elements or columns: NonNeg, or a norm over axis 0.
      mask_zero: whether id 0 is padding, for layers that support masks.
      weights: initial table.
      combiner: "sum", "mean" or "sqrtn" makes one row of the ids along the last dimension (which may be
        ragged or sparse), weighted by `call`'s `weights`; None, the default, keeps each.
      wire_dtype: "float16" or "bfloat16" halve the bytes and round rows and gradients; sums are still
        in the table's dtype. By default rows travel in the layer's compute dtype, gradients in the table's.
      ids_out_of_range: "error", or "clip" to take the nearest row. Negative ids count from the end.
      **kwargs: of `keras.layers.Layer`.

    Raises:
      ValueError: an argument is none of those, or cannot be had on slices of the table.

    Example:
      >>> layer = ShardedEmbedding(1000, 8, combiner="mean")
      >>> layer(tf.ragged.constant([[1, 5], [7]])).shape
      TensorShape([2, 8])

    Source: EmbRace (Li et al., ICPP 2022), section 4.1.
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        *args,
        combiner=None,
        wire_dtype=None,
        ids_out_of_range="error",
        **kwargs,
    ):
        for name, value, allowed in (
            ("combiner", combiner, (None, *COMBINERS)),
            ("wire_dtype", wire_dtype, _WIRE_DTYPES),
            ("ids_out_of_range", ids_out_of_range, ("error", "clip")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {allowed}.")
        self._options = {
            "combiner": combiner,
            "wire_dtype": wire_dtype,
            "ids_out_of_range": ids_out_of_range,
        }
        super().__init__(input_dim, output_dim, *args, **kwargs)
        # XLA has no all-to-all of Horovod's. With one worker, it pads the distinct ids, whose number it
        # cannot know, and optimizers that write rows, as LazyAdam does, write the padding.
        self.supports_jit = False
        if combiner and self.mask_zero:
            raise ValueError("mask_zero=True with a combiner: no ids are left to be masked; drop one.")

    def build(self, input_shape=None):
        """Makes this worker's columns of the table. Collective."""
        extended = extended_of(tf.distribute.get_strategy())
        if self.built or extended is None:
            return super().build(input_shape)
        self._refuse("lora_rank needs the whole matrix" if self.lora_rank else None)
        self._refuse("quantization needs the whole matrix" if self.quantization_mode else None)
        self._refuse(separable.refused_regularizer(self.embeddings_regularizer))
        self._refuse(separable.refused_constraint(self.embeddings_constraint))
        workers = extended.collectives.topology.num_workers
        partition = ColumnPartition(self.input_dim, self.output_dim, workers)

        def scattered(shape, dtype=None):
            del shape  # of the slice
            return extended.slices.scatter(
                self._drawn(partition.shape, dtype, extended.collectives), partition, dtype
            )

        penalty = self.embeddings_regularizer
        with extended.slices.making(partition):
            self._embeddings = self.add_weight(
                shape=(partition.rows, partition.widths[extended.slices.rank]),
                initializer=scattered,
                name="embeddings",
                regularizer=penalty and _SummedPenalty(penalty, extended.collectives),
                constraint=self.embeddings_constraint,
                aggregation="none",
            )
        if self._embeddings._value is None:
            _make_later(self._embeddings, extended.slices, partition)
        self.built = True
        return None

    def _drawn(self, shape, dtype, collectives):
        """The whole table on the first worker, None on others. Collective."""
        table = None
        with tf.init_scope(), agreement.together(collectives):
            if collectives.topology.rank == 0:
                with tf.device("CPU:0"):  # a GPU has memory for some columns
                    table = tf.cast(self.embeddings_initializer(shape, dtype=dtype), dtype)
                if table.shape != shape:
                    raise ValueError(
                        f"embeddings_initializer of {self.name!r} drew {table.shape}; the table is {shape}."
                    )
        return table

    def _refuse(self, reason):
        if reason is not None:
            raise ValueError(
                f"the table of {self.name!r} cannot be sharded: {reason}. Use keras.layers.Embedding there."
            )

    @property
    def embeddings(self):
        """The table, where one worker holds it all.

        Raises:
          AttributeError: the table is divided; a worker has no whole table to compute with.
        """
        held = slices.of(self._embeddings) if self.built else None
        if held is not None and held.partition.workers > 1:
            raise AttributeError(
                f"`embeddings` of {self.name!r}: its columns are on {held.partition.workers} workers. "
                "`get_weights()` on all workers gathers them; to compute with the table, e.g. to tie it to "
                "an output layer, use keras.layers.Embedding."
            )
        return super().embeddings

    def call(self, inputs, weights=None):
        """Rows of `inputs`, combined if so wanted; collective."""
        request, restore = self._request(inputs, weights)
        [rows] = _rows([self], [request])
        return restore(rows)

    def _request(self, inputs, weights=None):
        """(what to look up, the function from its rows to the output)."""
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        ids, restore = input_kinds.flatten(inputs, weights, self._options["combiner"])
        wire = self._options["wire_dtype"]
        request = Request(
            name=self.name,
            table=self._embeddings,
            ids=ids,
            dtype=tf.as_dtype(self.compute_dtype),
            wire_dtype=wire and tf.as_dtype(wire),
            clip=self._options["ids_out_of_range"] == "clip",
        )
        return request, restore

    def enable_lora(self, *args, **kwargs):
        """As Keras's, where one worker holds the whole table."""
        self._refuse_if_divided("LoRA needs the whole matrix")
        super().enable_lora(*args, **kwargs)

    def quantize(self, *args, **kwargs):
        """As Keras's, where one worker holds the whole table."""
        self._refuse_if_divided("quantization needs the whole matrix")
        super().quantize(*args, **kwargs)

    def _refuse_if_divided(self, reason):
        self._refuse(reason if self.built and slices.of(self._embeddings) is not None else None)

    def compute_output_shape(self, input_shape, weights_shape=None):
        """[..., D], without the last dimension of the ids if they are combined."""
        kept = input_shape[:-1] if self._options["combiner"] else input_shape
        return (*kept, self.output_dim)

    def compute_output_spec(self, inputs, weights=None):
        """What `call` returns, for inputs without values."""
        shape = self.compute_output_shape(inputs.shape)
        ragged = getattr(inputs, "ragged", False) and not self._options["combiner"]
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    def get_config(self):
        """The arguments of the constructor; those of Keras's Embedding alone where these suffice."""
        changed = {k: v for k, v in self._options.items() if v != _DEFAULTS[k]}
        return {**super().get_config(), **changed}

    def save_own_variables(self, store):
        """Writes the whole table, as Embedding does."""
        held = slices.of(getattr(self, "_embeddings", None))
        if held is None:
            super().save_own_variables(store)
        else:
            store["0"] = held.slices.whole(held)

    def load_own_variables(self, store):
        """Takes this worker's columns of the whole table."""
        held = slices.of(getattr(self, "_embeddings", None))
        if held is None:
            super().load_own_variables(store)
        else:
            self._check_load_own_variables(store)
            held.assign(slices.own(held, store["0"]))


# Keras names the groups of a file by class: so a file of either class loads into the other.
ShardedEmbedding.__name__ = "Embedding"


def lookup_together(layers, inputs):
    """The outputs of several `ShardedEmbedding`s, by one exchange of ids, one of rows and one of gradients.

    Each layer called by itself makes its own: three collectives per table and step, which small tables
    spend on latency. For the `call` of a model or layer of one's own; Keras's functional models call layers
    one by one.

    Args:
      layers: `ShardedEmbedding`s of one strategy, with one wire_dtype and dtype policy.
      inputs: of each layer.

    Returns:
      A list, one output per layer, with the mask of a layer with mask_zero.

    Raises:
      ValueError: there are not as many inputs as layers, or dtypes differ.

    Example:
      >>> layers = [ShardedEmbedding(10, 4), ShardedEmbedding(20, 2)]
      >>> [rows.shape for rows in lookup_together(layers, [tf.constant([1]), tf.constant([3])])]
      [TensorShape([1, 4]), TensorShape([1, 2])]
    """
    if len(layers) != len(inputs):
        raise ValueError(f"{len(layers)} layers were given {len(inputs)} inputs; pass one for each.")
    for layer in layers:
        layer.build()
    inputs = [i if tf.is_tensor(i) else tf.convert_to_tensor(i) for i in inputs]
    asked = [layer._request(i) for layer, i in zip(layers, inputs, strict=True)]
    requests, restores = [r for r, _ in asked], [restore for _, restore in asked]
    if len({(r.dtype, r.wire_dtype, r.table.dtype) for r in requests}) > 1:
        raise ValueError("the layers' dtypes or wire_dtypes differ; call lookup_together for each kind.")
    outputs = [r(rows) for r, rows in zip(restores, _rows(layers, requests), strict=True)]
    for layer, ids, output in zip(layers, inputs, outputs, strict=True):
        if layer.supports_masking:  # as Layer.__call__ does
            layer._set_mask_metadata(ids, output, None)
    return outputs


def _rows(layers, requests):
    """What is looked up; zeros while Keras infers shapes of a model of one's own, before there are tables."""
    if any(layer._embeddings._value is None for layer in layers):
        return [
            tf.zeros([tf.size(request.ids), layer.output_dim], request.dtype)
            for layer, request in zip(layers, requests, strict=True)
        ]
    return lookup(requests)


def _make_later(variable, all_slices, partition):
    """While Keras infers shapes of a model of one's own, it puts off making variables, past `making`."""
    make = variable._initialize_with_initializer

    def make_slice(initializer):
        with all_slices.making(partition):
            make(initializer)

    variable._initialize_with_initializer = make_slice


class _SummedPenalty:
    """A regularizer's penalty on the whole table: the sum of those on slices, on all workers."""

    def __init__(self, regularizer, collectives):
        self._regularizer = regularizer
        self._collectives = collectives

    def __call__(self, table):
        @tf.custom_gradient
        def summed(penalty):
            def gradient(of_sum, variables=None):
                # Each worker's loss has its share of the penalty; together they have all of it.
                of_own = self._collectives.all_reduce(of_sum, purpose="table_penalty_gradient")
                return of_own if variables is None else (of_own, [None] * len(variables))

            return self._collectives.all_reduce(penalty, purpose="table_penalty"), gradient

        return summed(self._regularizer(table))
