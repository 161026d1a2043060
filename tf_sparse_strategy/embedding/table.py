"""What a layer does with a table that is divided by columns; the same in Keras 3 and tf_keras."""

import contextlib
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_strategy import agreement
from tf_sparse_strategy.embedding import drawing, files, separable, slices
from tf_sparse_strategy.embedding import inputs as input_kinds
from tf_sparse_strategy.embedding.combiner import COMBINERS
from tf_sparse_strategy.embedding.lookup import Request, lookup
from tf_sparse_strategy.embedding.partition import ColumnPartition
from tf_sparse_strategy.hooking import while_set

_ALLOWED = {
    "combiner": (None, *COMBINERS),
    "wire_dtype": (None, "float16", "bfloat16", "float32"),
    "ids_out_of_range": ("error", "clip"),
}


class _Ahead(threading.local):
    outputs = types.MappingProxyType({})  # (id of a layer, id of its ids): what it will return


_ahead = _Ahead()


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of ShardedEmbedding that Embedding does not have.

    Raises:
      ValueError: one of them is not allowed.
    """

    combiner: str | None = None
    wire_dtype: str | None = None
    ids_out_of_range: str = "error"

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value not in _ALLOWED[name]:
                raise ValueError(f"{name}={value!r} is not one of {_ALLOWED[name]}.")

    def changed(self) -> dict[str, str]:
        """Those that differ from the defaults."""
        defaults = dataclasses.asdict(Options())
        return {k: v for k, v in dataclasses.asdict(self).items() if v != defaults[k]}


class ShardedTable:
    """Mixed into an Embedding of either Keras, before it: makes, looks up and saves a divided table.

    The Embedding keeps the variable as `_embeddings`.
    """

    _workers_later = 1  # among whom a table will be divided that is not made yet

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
        options = Options(combiner, wire_dtype, ids_out_of_range)
        super().__init__(input_dim, output_dim, *args, **kwargs)
        self._options = options
        if combiner and self.mask_zero:
            raise ValueError("mask_zero=True with a combiner: no ids are left to be masked; drop one.")
        if getattr(self, "sparse", False):  # of tf_keras
            raise ValueError("sparse=True: the output would be sparse. Leave it out; ids may be sparse.")
        # Keras 3 asks. XLA has no all-to-all of Horovod's. With one worker, it pads the distinct ids, whose
        # number it cannot know: LazyAdam would take the padding for rows of the step.
        self.supports_jit = False

    @contextlib.contextmanager
    def _columns(self, extended):
        """While this lasts, `add_weight` makes this worker's columns; yields its arguments. Collective."""
        self._refuse(separable.refused_regularizer(self.embeddings_regularizer))
        self._refuse(separable.refused_constraint(self.embeddings_constraint))
        workers = extended.collectives.topology.num_workers
        partition = ColumnPartition(self.input_dim, self.output_dim, workers)

        def columns(shape, dtype=None):
            del shape  # of the slice
            recipe = self._recipe(dtype, extended.collectives)
            if recipe is not None:
                rows = functools.partial(drawing.rows, recipe, self.output_dim)
                blocks = extended.slices.drawn(rows, partition)
            else:
                table = self._drawn(partition.shape, dtype, extended)
                if workers == 1:
                    return table
                blocks = extended.slices.scatter(table, partition, dtype)
            return extended.slices.filled_with(blocks, partition, dtype)

        penalty = self.embeddings_regularizer
        with extended.slices.making(partition):
            yield {
                "shape": (partition.rows, partition.widths[extended.slices.rank]),
                "initializer": columns,
                "name": "embeddings",
                "regularizer": penalty and _SummedPenalty(penalty, extended.collectives),
                "constraint": self.embeddings_constraint,
            }
        extended.slices.tables.add(self)

    def _recipe(self, dtype, collectives):
        """That of the first worker, whose initializer is the only one that counts. Collective."""
        if collectives.topology.num_workers == 1:
            return None
        with tf.init_scope():
            own = drawing.recipe_of(self.embeddings_initializer, dtype)
            firsts = agreement.gather(own, collectives)[0]
        return firsts and drawing.Recipe(*firsts)

    def _drawn(self, shape, dtype, extended):
        """The whole table on the first worker, None on others. Collective."""
        table, collectives = None, extended.collectives
        with tf.init_scope(), extended.first_draws(), agreement.together(collectives):
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
                f"the table of {self.name!r} cannot be sharded: {reason}. Use an ordinary Embedding there."
            )

    def _require_whole(self):
        """Raises AttributeError for who wants to compute with a table that no worker has."""
        held = slices.of(self._embeddings) if self.built else None
        workers = self._workers_later if held is None else held.partition.workers
        if workers > 1:
            raise AttributeError(
                f"`embeddings` of {self.name!r}: its columns are on {workers} workers. "
                "`get_weights()` on all workers gathers them; to compute with the table, e.g. to tie it to "
                "an output layer, use an ordinary Embedding."
            )

    def call(self, inputs, weights=None):
        """Rows of `inputs`, combined if so wanted; collective.

        Args:
          inputs: ids [...], whole numbers (others are cast to int32); may be ragged, or sparse [B, K] to be
            combined.
          weights: one for each id to be combined, in its place; None (default) for 1.

        Returns:
          [..., D] in the compute dtype, without the ids' last dimension if they are combined.

        Raises:
          ValueError: weights or sparse ids without a combiner, or ids of a shape that cannot be combined.
          tf.errors.InvalidArgumentError: an id is out of range, on all workers; or weights are not in the
            places of the ids.
        """
        return self._output(inputs, weights)

    @tf.autograph.experimental.do_not_convert  # tf_keras converts `call`, whose arguments it looks at
    def _output(self, inputs, weights):
        found = _ahead.outputs.get((id(self), id(inputs)))
        if found is not None and weights is None:
            return found
        request, restore = self._request(inputs, weights)
        [rows] = _rows([self], [request])
        return restore(rows)

    def _request(self, inputs, weights=None) -> tuple[Request, Callable[[tf.Tensor], Any]]:
        """(what to look up, the function from its rows to the output)."""
        if isinstance(inputs.dtype, str):  # a variable of Keras 3's
            inputs = tf.convert_to_tensor(slices.local(inputs))
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        ids, restore = input_kinds.flatten(inputs, weights, self._options.combiner)
        wire = self._options.wire_dtype
        adapted = getattr(self, "lora_enabled", False)  # in Keras 3, without a strategy
        request = Request(
            name=self.name,
            table=self.embeddings if adapted else self._embeddings,
            ids=ids,
            dtype=tf.as_dtype(self.compute_dtype),
            wire_dtype=wire and tf.as_dtype(wire),
            clip=self._options.ids_out_of_range == "clip",
            trained=self.is_trained,
        )
        return request, restore

    def _dtypes(self):
        """What layers that are looked up together have in common."""
        return self.compute_dtype, self.variable_dtype, self._options.wire_dtype

    @property
    def is_trained(self):
        """Whether its gradient is wanted."""
        return self.trainable and self._embeddings.trainable  # tf_keras freezes the layer alone

    def get_config(self):
        """The arguments of the constructor; those of Keras's Embedding alone where these suffice."""
        return {**super().get_config(), **self._options.changed()}

    def save_own_variables(self, store):
        """Writes the whole table, as Embedding does."""
        held = slices.of(getattr(self, "_embeddings", None))
        if held is None:
            super().save_own_variables(store)
        else:
            files.write(store, "0", held)

    def load_own_variables(self, store):
        """Takes this worker's columns of the whole table."""
        held = slices.of(getattr(self, "_embeddings", None))
        if held is None:
            super().load_own_variables(store)
        elif list(store.keys()) != ["0"]:
            raise ValueError(f"{self.name!r} has 1 variable; the file has {len(store.keys())} for it.")
        else:
            held.assign(files.read(store, "0", held))


@tf.autograph.experimental.do_not_convert
def lookup_together(layers, inputs):
    """The outputs of several `ShardedEmbedding`s, by one exchange of ids, one of rows and one of gradients.

    Each layer called by itself makes its own: three collectives per table and step, or six, which small
    tables spend on latency. For the `call` of a model or layer of one's own; functional models of Keras 3 do
    so by themselves with the tables whose ids are their inputs.

    Args:
      layers: `ShardedEmbedding`s of one strategy, at least one, with one wire_dtype and dtype policy.
      inputs: ids for each layer, as its `call` takes them.

    Returns:
      A list, one output per layer, with the mask of a layer with mask_zero.

    Raises:
      ValueError: there are not as many inputs as layers, dtypes differ, outputs are regularized, or a layer
        has a `call` of its own.
      tf.errors.InvalidArgumentError: an id is out of range, on all workers.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> layers = [tss.layers.ShardedEmbedding(10, 4), tss.layers.ShardedEmbedding(20, 2)]
      >>> [rows.shape for rows in lookup_together(layers, [tf.constant([1]), tf.constant([3])])]
      [TensorShape([1, 4]), TensorShape([1, 2])]

    Source: this library.
    """
    if len(layers) != len(inputs):
        raise ValueError(f"{len(layers)} layers were given {len(inputs)} inputs; pass one for each.")
    for layer in layers:
        if layer.activity_regularizer is not None or type(layer).call is not ShardedTable.call:
            raise ValueError(
                f"lookup_together calls no layer, and {layer.name!r} has an activity_regularizer or a call "
                "of its own; call it by itself."
            )
        layer.build()
    inputs = [i if tf.is_tensor(i) else tf.convert_to_tensor(i) for i in inputs]
    asked = [layer._request(i) for layer, i in zip(layers, inputs, strict=True)]
    requests, restores = [r for r, _ in asked], [restore for _, restore in asked]
    if len({layer._dtypes() for layer in layers}) > 1:
        raise ValueError("the layers' dtypes or wire_dtypes differ; call lookup_together for each kind.")
    outputs = [r(rows) for r, rows in zip(restores, _rows(layers, requests), strict=True)]
    for layer, ids, output in zip(layers, inputs, outputs, strict=True):
        if layer.supports_masking:  # as Layer.__call__ does
            output._keras_mask = layer.compute_mask(ids)
    return outputs


@contextlib.contextmanager
def looked_up_ahead(lookups: Sequence[tuple[ShardedTable, Any]]) -> Iterator[None]:
    """While this lasts, `lookups`, (layer, ids), are known, by one exchange for all layers of one kind."""
    kinds = {}
    for layer, ids in lookups:
        kinds.setdefault(layer._dtypes(), []).append((layer, ids))
    outputs = dict(_ahead.outputs)
    for layers, inputs in (zip(*together, strict=True) for together in kinds.values() if len(together) > 1):
        keys = [(id(layer), id(ids)) for layer, ids in zip(layers, inputs, strict=True)]
        outputs.update(zip(keys, lookup_together(layers, inputs), strict=True))
    with while_set(_ahead, outputs=outputs):
        yield


def _rows(layers, requests):
    """What is looked up; zeros while Keras infers shapes of a model of one's own, before there are tables."""
    if any(slices.tensorflows(layer._embeddings) is None for layer in layers):
        return [
            tf.zeros([tf.size(request.ids), layer.output_dim], request.dtype)
            for layer, request in zip(layers, requests, strict=True)
        ]
    return lookup(requests)


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
