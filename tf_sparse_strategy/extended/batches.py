"""What a replica function is called with: this process's part of it, tagged batches opened."""

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import values

from tf_sparse_strategy.input import Batch
from tf_sparse_strategy.scheduling.look_ahead import Ahead


def is_per_replica(value) -> bool:
    """Whether each process has a part of its own of `value`; not so of variables."""
    return isinstance(value, values.DistributedValues) and not isinstance(value, values.DistributedVariable)


def component(value):
    """This process's part of a per-replica value, or its spec; variables are left whole."""
    if isinstance(value, values.PerReplicaSpec):
        return value._value_specs[0]
    return value.values[0] if is_per_replica(value) else value


def opened(args):
    """(this process's part of `args` with a tagged batch opened, its Batch or None, its Ahead or None)."""
    args = tf.nest.map_structure(component, args, expand_composites=False)
    args, batch = _opened(args, Batch)
    args, ahead = _opened(args, Ahead)
    return args, batch, ahead


def _opened(args, kind: type) -> tuple[tuple, Any]:
    """(`args` with the data of the `Batch` or `Ahead`, whichever `kind` is, among them; this one or None)."""
    found = next((a for a in args if isinstance(a, kind)), None)
    return tuple(a.data if isinstance(a, kind) else a for a in args), found
