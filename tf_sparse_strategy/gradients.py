"""From a list of gradients to their sum: buckets, state, and the chosen communication."""

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketPlan, BucketSpec, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication


class GradientReducer:
    """Sums lists of gradients over the workers.

    Dense gradients travel in buckets through `communication`. `tf.IndexedSlices` are gathered
    whole: indices and values of all workers one after the other, which sums to the same dense
    gradient.

    Args:
      communication: sums one flat bucket.
      collectives: of this worker.
      bucket_bytes: size limit of a bucket, bytes.
    """

    def __init__(self, communication: Communication, collectives: Collectives, bucket_bytes: int):
        self.communication = communication
        self._collectives = collectives
        self._bucket_bytes = bucket_bytes
        self._states: dict[tuple, dict[str, tf.Variable]] = {}

    @tf.autograph.experimental.do_not_convert
    def reduce(self, pairs) -> list:
        """Returns the sums over workers of `[(gradient, variable), …]`, in the same order.

        Raises:
          ValueError: a dense gradient has no static shape.
        """
        if self._collectives.topology.num_workers == 1:
            return [gradient for gradient, _ in pairs]
        reduced = [None] * len(pairs)
        dense = []
        for position, (gradient, variable) in enumerate(pairs):
            if isinstance(gradient, tf.IndexedSlices):
                reduced[position] = self.reduce_sparse(gradient)
            else:
                dense.append((position, tf.convert_to_tensor(gradient), variable))
        plan = BucketPlan.build([_spec(g, v) for _, g, v in dense], self._bucket_bytes)
        for bucket in plan.buckets:
            members = [dense[p] for p in bucket.positions]
            summed = self._reduce_bucket(bucket, [gradient for _, gradient, _ in members])
            for (position, _, _), gradient in zip(members, summed, strict=True):
                reduced[position] = gradient
        return reduced

    def reduce_sparse(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Concatenates all workers' slices: duplicate indices add up where they are applied."""
        gather = self._collectives.all_gather
        return tf.IndexedSlices(
            gather(gradient.values, purpose="sparse_gradient_values"),
            gather(gradient.indices, purpose="sparse_gradient_indices"),
            gradient.dense_shape,
        )

    def _reduce_bucket(self, bucket: BucketSpec, gradients: list) -> list:
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        packed = flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
        summed = self.communication.reduce(packed, self._state(bucket), self._collectives)
        parts = [summed] if len(flat) == 1 else tf.split(summed, bucket.sizes)
        return [
            tf.reshape(part, spec.shape) for part, spec in zip(parts, bucket.tensors, strict=True)
        ]

    def _state(self, bucket: BucketSpec) -> dict[str, tf.Variable]:
        if bucket.key not in self._states:
            with tf.init_scope():
                self._states[bucket.key] = self.communication.state(
                    bucket, self._collectives.topology
                )
        return self._states[bucket.key]


def _spec(gradient: tf.Tensor, variable: tf.Variable) -> TensorSpec:
    if not gradient.shape.is_fully_defined():
        raise ValueError(
            f"the gradient of variable {variable.name!r} has the unknown shape {gradient.shape}; "
            "buckets need static shapes. Call tf.ensure_shape(gradient, variable.shape)."
        )
    return TensorSpec(
        key=getattr(variable, "_unique_id", variable.name),
        shape=tuple(gradient.shape.as_list()),
        dtype=gradient.dtype.name,
        itemsize=gradient.dtype.size,
    )
