"""Tables in Keras's HDF5 files: written and read some rows at a time, so that no worker needs memory for all.

Stores that are no single HDF5 file, and types that HDF5 does not know, take whole tables.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_strategy.embedding import slices, wholes

_HDF5_DTYPES = (tf.float16, tf.float32, tf.float64)
_keras3s: tuple[Any, Any] = (None, None)  # see `install_keras3`


def install_keras3(store_class: Any, get_dataset: Any) -> None:
    """Makes Keras 3's files known.

    Args:
      store_class: of stores that are one HDF5 file.
      get_dataset: from (group, key) to the dataset, unless it is one that may not be trusted.
    """
    global _keras3s
    _keras3s = store_class, get_dataset


def write(store: Any, key: str, variable: Any) -> None:
    """Makes the whole of `variable` `store[key]`. Collective, unless the first worker asks (`Wholes.asking`).

    Args:
      store: what either Keras hands to `save_own_variables`.
      key: of the variable in it.
      variable: a slice, or one that all workers hold.
    """
    held = slices.of(variable)
    group = _group(store, held)
    if group is None:
        store[key] = slices.whole(variable)
        return
    dataset = group.create_dataset(key, held.partition.shape, held.dtype.as_numpy_dtype)

    def take(first, end, rows):
        dataset[first:end] = rows

    held.slices.wholes.pass_rows(held, take)


def read(store: Any, key: str, variable: Any) -> Any:
    """What this worker keeps in `variable` of `store[key]`, which is whole.

    Args:
      store: what either Keras hands to `load_own_variables`.
      key: of the variable in it.
      variable: a slice, or one that all workers hold.

    Raises:
      ValueError: the value has another shape than the whole.
    """
    held = slices.of(variable)
    group = _group(store, held)
    if group is None:
        return slices.own(variable, store[key])
    dataset = group[key] if group is store else _keras3s[1](group, key)
    if "dtype" in dataset.attrs:  # bfloat16, which Keras takes apart
        return slices.own(variable, store[key])
    partition, rank = held.partition, held.slices.rank
    slices.require_whole(variable, dataset)
    kept = np.empty([partition.rows, partition.widths[rank]], dataset.dtype)
    for first, end in partition.chunks(wholes.CHUNK):
        kept[first:end] = partition.of(dataset[first:end], rank)
    return kept


def _group(store, held) -> Any:
    """The HDF5 group in which a store of either Keras keeps rows of `held`; None where they go as a whole."""
    if held is None or not held.partition.goes_by_rows or held.dtype not in _HDF5_DTYPES:
        return None
    group = store._h5_entry_group if type(store) is _keras3s[0] else store  # tf_keras's is the group
    return group if hasattr(group, "create_dataset") else None
