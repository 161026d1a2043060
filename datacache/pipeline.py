"""From sample numbers to tensors: gathered from memory, and what is not there read, decoded and put there."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache.local import LocalCopies
from datacache.memory import Memory

# Batches that wait for the training. tf.data's choice grows: new memory, which takes longer than a copy.
READY = 2
_DECODED_AT_ONCE = 16  # of a batch's misses; batches are loaded in parallel as well


def sample_spec(decode_sample: Callable[[tf.Tensor], Any]) -> Any:
    """The structure that a sample decodes to.

    Raises:
      ValueError: a component is no tensor of numbers with a fully defined shape.
    """
    function = tf.function(decode_sample)
    traced = function.get_concrete_function(tf.TensorSpec([], tf.int64))
    outputs = tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs)
    for spec in tf.nest.flatten(outputs):
        if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.string, tf.variant, tf.resource):
            raise ValueError(
                f"decode returns {spec}: a sample must consist of tensors of numbers; encode strings as "
                "numbers, and make ragged and sparse tensors dense."
            )
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"decode returns a tensor of shape {spec.shape}: all samples must have one fully defined "
                "shape. For images give `channels=3` to the decoder and resize to a fixed size; "
                "`tf.ensure_shape` states a shape that TensorFlow cannot infer."
            )
    return outputs


class Loader:
    """Loads samples by number: `loader(ids)` in a graph or eagerly, [b] -> structure of [b, ...].

    Args:
      decode_sample: from an int64 scalar to a sample, in the graph.
      spec: the sample's structure.
      memory: the store.
      copies: what `decode_sample` reads through. Datasets hold the loader, and it both leases: nothing
        clears what a dataset needs, even when nobody else remembers the cache.
    """

    def __init__(
        self,
        decode_sample: Callable[[tf.Tensor], Any],
        spec: Any,
        memory: Memory,
        copies: LocalCopies,
    ):
        self._decode_sample, self.spec, self._memory = decode_sample, spec, memory
        self._copies = copies
        self._flat_spec = tf.nest.flatten(spec)

    def __call__(self, ids: tf.Tensor) -> Any:
        # A GPU, which eager calls would take, may round otherwise than tf.data, which decodes the others.
        with tf.device("CPU:0"):
            return tf.nest.pack_sequence_as(self.spec, self._load(ids))

    def _load(self, ids: tf.Tensor) -> list[tf.Tensor]:
        if self._memory.path is None:
            return self._decode(ids)
        found, values = native.gather(self._memory.path, ids, self._flat_spec)

        def completed():
            missing = tf.boolean_mask(ids, ~found)
            fresh = native.put(self._memory.path, missing, self._decode(missing))
            return native.complete(found, values, fresh)

        return tf.cond(tf.reduce_all(found), lambda: values, completed)

    def _decode(self, ids: tf.Tensor) -> list[tf.Tensor]:
        return tf.map_fn(
            lambda sample: tf.nest.flatten(self._decode_sample(sample)),
            ids,
            fn_output_signature=self._flat_spec,
            parallel_iterations=_DECODED_AT_ONCE,
        )


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with tf.data's autotuning off: AUTOTUNE means a call per core.

    A tuned iterator may take as long to end as it has lived, up to 60 s, with Python's lock held: TensorFlow
    (2.20) wakes the tuning thread before it sets the flag that this thread then looks for.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = os.cpu_count()  # else 16 at most
    return dataset.with_options(options)


def apply_augment(augment: Callable, batch: Any, seeds: tf.Tensor) -> Any:
    """Calls a user's function with the components of a batch, and with `seed=` if it takes that."""
    arguments = batch if isinstance(batch, tuple | list) else (batch,)  # as tf.data takes a list
    if "seed" in inspect.signature(augment).parameters:
        return augment(*arguments, seed=seeds)
    return augment(*arguments)
