"""The parallel tensor operator: what every worker would compute alike is computed once, in parts."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lars_pto import partition

UNIT = 1 << 16  # elements; pieces start at multiples, as the blocks of `custom_ops.segmented_norms`


def parallel_tensor_op(
    fn: Callable[[tf.Tensor], tf.Tensor],
    tensors: Sequence[tf.Tensor],
    costs: Sequence[float] | None = None,
    separable: bool = False,
) -> list[tf.Tensor]:
    """[fn(x) for x in tensors], each x computed by one of the P replicas and sent to the others.

    For tensors that every replica holds alike, such as summed gradients: r[p] = fn(x[p]) on replica
    p, then r = all-gather(r[p]), in one message of fixed size. All replicas get the same bits, also
    where `fn` is not deterministic, and a NaN reaches all of them. Time: the largest share of the
    cost, and one all-gather of all results; use it where that is less than computing everything.

    Call it inside `strategy.run`, on every replica with tensors of the same shapes. Without a
    strategy, or with one replica, it is a loop over `fn`.

    Args:
      fn: computes the result of one tensor; a pure function whose result has a static shape.
      tensors: x, with static shapes.
      costs: what computing each result costs, any unit; None (default): the bytes of each tensor. The
        dearest tensor bounds the gain, unless `separable`.
      separable: whether fn(x) is the sum of fn over the pieces of x flattened and cut; then large
        tensors are cut. Sums, sums of squares and counts are separable; norms are not. Default False.

    Returns:
      The results in the order of `tensors`.

    Raises:
      RuntimeError: called outside `strategy.run` under a strategy, or under one that does not say which
        replica is traced (TPUs').
      ValueError: a shape is not static, results differ in dtype, or `costs` has another length.

    Example:
      >>> import lars_pto
      >>> tensors = [tf.range(3.0), tf.ones([2, 2])]
      >>> [float(r) for r in lars_pto.parallel_tensor_op(tf.reduce_sum, tensors, separable=True)]
      [3.0, 4.0]

    Source: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", MLSys 2021, section 4.2, equations 12 to 14.
    """
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    for i, x in enumerate(tensors):
        if not x.shape.is_fully_defined():
            raise ValueError(
                f"parallel_tensor_op got tensors[{i}] of shape {x.shape}; the division is made before "
                "anything runs, so all shapes must be static: tf.ensure_shape helps."
            )
    if costs is None:
        costs = [x.shape.num_elements() * x.dtype.size for x in tensors]
    if len(costs) != len(tensors):
        raise ValueError(
            f"parallel_tensor_op got {len(costs)} costs for {len(tensors)} tensors; give one for each."
        )
    workers, _ = replica()
    if workers == 1 or not tensors:
        return [fn(x) for x in tensors]
    specs = _result_specs(fn, tensors)
    sizes = [x.shape.num_elements() for x in tensors]
    if separable:
        division = partition.split_tensors(sizes, costs, workers, UNIT)
    else:
        division = partition.whole_tensors(sizes, costs, workers)

    def compute(share):
        return [tf.reshape(fn(piece_of(tensors[p.tensor], p)), [-1]) for p in share]

    lengths = [
        sum(specs[p.tensor].shape.num_elements() for p in share) for share in division
    ]
    gathered = gather_shares(
        lambda share: tf.concat(compute(share), axis=0), division, lengths, [], specs[0].dtype
    )
    results: list[Any] = [None] * len(tensors)
    pieces = [p.tensor for share in division for p in share]
    parts = tf.split(gathered, [specs[i].shape.num_elements() for i in pieces])
    for i, part in zip(pieces, parts, strict=True):
        results[i] = part if results[i] is None else results[i] + part
    return [tf.reshape(r, spec.shape) for r, spec in zip(results, specs, strict=True)]


def replica() -> tuple[int, int]:
    """(number of replicas, which of them this is) in the current replica context.

    Raises:
      RuntimeError: there is no replica context, or it does not know its number while traced.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "parallel tensor operations are called by every replica: call them inside strategy.run(...), "
            "or outside of strategy.scope()."
        )
    number = tf.get_static_value(context.replica_id_in_sync_group)
    if number is None:
        raise RuntimeError(
            f"{type(context.strategy).__name__} does not say which replica is traced, as TPUs' "
            "strategies do not: pass parallel='off', or use MirroredStrategy or SparseStrategy."
        )
    return context.num_replicas_in_sync, int(number)


def piece_of(x: tf.Tensor, piece: partition.Piece) -> tf.Tensor:
    """The elements of `piece`; `x` itself, in its shape, where that is all of them."""
    if piece.end - piece.begin == x.shape.num_elements():
        return x
    return tf.reshape(x, [-1])[piece.begin : piece.end]


def gather_shares(
    compute: Callable[[Sequence[partition.Piece]], tf.Tensor],
    division: partition.Division,
    lengths: Sequence[int],
    row_shape: Sequence[int],
    dtype: tf.DType,
) -> tf.Tensor:
    """All workers' rows in worker order, by one all-gather whose layout everyone knows.

    Shares are padded to the longest, so that the message has one size on all workers and in all steps.

    Args:
      compute: this worker's rows [lengths[rank], *row_shape] from its pieces; not called without any.
      division: each worker's pieces.
      lengths: rows of each worker.
      row_shape: shape of one row.
      dtype: dtype of the rows.

    Returns:
      [sum(lengths), *row_shape].
    """
    _, rank = replica()
    width = max(lengths)
    rows = compute(division[rank]) if lengths[rank] else tf.zeros([0, *row_shape], dtype)
    padding = [[0, width - lengths[rank]], *([0, 0] for _ in row_shape)]
    context = tf.distribute.get_replica_context()
    gathered = context.all_gather(tf.pad(rows, padding), axis=0)
    gathered = tf.ensure_shape(gathered, [width * len(lengths), *row_shape])
    if len(set(lengths)) == 1:
        return gathered
    return tf.concat([gathered[width * r : width * r + n] for r, n in enumerate(lengths)], axis=0)


def _result_specs(fn, tensors) -> list[tf.TensorSpec]:
    known = {}
    for x in tensors:
        key = (tuple(x.shape), x.dtype)
        if key not in known:
            traced = tf.function(fn).get_concrete_function(tf.TensorSpec(*key))
            known[key] = traced.structured_outputs
    specs = [known[tuple(x.shape), x.dtype] for x in tensors]
    for i, spec in enumerate(specs):
        if not isinstance(spec, tf.TensorSpec | tf.Tensor) or not spec.shape.is_fully_defined():
            raise ValueError(
                f"fn gives {spec} for tensors[{i}]; it must return one tensor of static shape."
            )
        if spec.dtype != specs[0].dtype:
            raise ValueError(
                f"fn gives {spec.dtype.name} for tensors[{i}] and {specs[0].dtype.name} for "
                "tensors[0]; one message carries one dtype: cast inside fn."
            )
    return specs
