"""Bytes that a collective puts on the wire, where only the run tells how many its tensors have."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_sparse_strategy.topology import Topology
from tf_sparse_strategy.traffic import Bytes


def of_tensor(
    formula: Callable[[Topology, int], Bytes], topology: Topology, x: tf.Tensor
) -> Bytes | tf.Tensor:
    """`formula(topology, bytes of x)`; a tensor [local, cross] where only the run tells how many they are."""
    if x.shape.is_fully_defined():
        return formula(topology, x.shape.num_elements() * x.dtype.size)
    p = topology.num_workers  # every rate is a multiple of 1/P: no rounding of its own
    rate = formula(topology, p)
    size = tf.size(x, tf.int64) * x.dtype.size
    return tf.stack([size * rate.local // p, size * rate.cross // p])


def of_parts(topology: Topology, ranks: Sequence[int], x: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Direct exchange of `splits[i]` rows of `x` with worker `ranks[i]`: [local, cross] at run time."""
    row = tf.size(x, tf.int64) * x.dtype.size // tf.maximum(tf.shape(x, tf.int64)[0], 1)
    here = [topology.nodes[r] == topology.node and r != topology.rank for r in ranks]
    there = [topology.nodes[r] != topology.node for r in ranks]
    sent = tf.cast(splits, tf.int64) * row
    return tf.stack([tf.reduce_sum(sent * tf.cast(mask, tf.int64)) for mask in (here, there)])
