"""Error-feedback memory: what a scheme did not send in this step, it sends later.

A scheme that sends only part of a gradient adds the rest to a *residual*, which takes part in the next
selection: acc = gradient + residual = sent + new residual. Residuals are float32 variables of one
worker: not mirrored, not broadcast, and made once for each bucket, whatever is traced later.

A step in which any gradient of any worker is NaN or Inf must leave no trace in a residual, and one
that loss scaling skips must not lose what other buckets sent. So a scheme does not write its new
state: it *stages* it, with the verdict of all workers on its bucket, and `commit` writes all buckets'
states, or none.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_strategy import wire
from tf_sparse_strategy.gradient_kinds import all_finite
from tf_sparse_strategy.topology import Group, Topology

# Names in a bucket's state.
RESIDUAL = "residual"  # what conserves the gradient's mass
VELOCITY = "velocity"  # the momentum that DGC applies before the selection
LEFT = "left"  # a residual that was restored where none is kept: the next sum takes it along
WAITS = "waits"  # 1 until that sum has been, then 0
AGE = "age"  # steps since OkTopK began, or was made to begin anew; at 0 it takes thresholds


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of which residual a worker keeps.

    The workers' residuals make up H vectors of a bucket's length N, one for each *holder*; their sum
    is what remains to be sent. A holder's vector lies in S shards of ceil(N/S) elements on S workers.

    Args:
      group: the workers, one for each holder, that keep the same shard.
      holders, holder: H and this worker's place in it.
      shards, shard: S and this worker's place in it.
    """

    group: Group
    holders: int
    holder: int
    shards: int = 1
    shard: int = 0

    @classmethod
    def per_worker(cls, topology: Topology) -> "Share":
        """Every worker holds a residual of its own, whole: H = P, S = 1."""
        return cls(Group.GLOBAL, topology.num_workers, topology.rank)

    @classmethod
    def per_node(cls, topology: Topology) -> "Share":
        """Every node holds one, its G workers a shard each: H = M, S = G.

        On uneven nodes, whose shards would not pair up, every worker counts as a node; and so it is with one
        worker per node, whom the whole cluster's collectives serve better than those between nodes.
        """
        if not topology.is_uniform or topology.local_workers == 1:
            return cls.per_worker(topology)
        cross = topology.index(Group.CROSS)
        return cls(
            Group.CROSS, topology.num_nodes, cross, topology.local_workers, topology.local
        )

    def length(self, n: int) -> int:
        """Elements of this worker's shard of `n`, padding included."""
        return -(-n // self.shards)


class State(dict):
    """A bucket's variables by name, and what the step that is being computed makes of them.

    Args:
      variables: by name.
      lossless: whether nothing of the step's sum may be rounded off, as it takes residuals along.
    """

    def __init__(self, variables: dict[str, tf.Variable], lossless: bool = False):
        super().__init__(variables)
        self.lossless = lossless
        self.staged: dict[str, tf.Tensor] = {}
        self.finite: tf.Tensor | None = None

    def stage(self, finite: tf.Tensor, **values: tf.Tensor) -> None:
        """Notes new values of variables, to be written if `finite`.

        Args:
          finite: scalar bool, the same on all workers: all contributions to this bucket are finite.
          **values: by the name of the variable.
        """
        self.finite = finite
        self.staged.update(values)

    def verdict(self, summed: tf.Tensor) -> tf.Tensor:
        """What was staged with, or where nothing was, whether the sum is finite: other buckets ask, too."""
        return all_finite(summed) if self.finite is None else self.finite


def commit(states: Sequence[State], finite: Sequence[tf.Tensor] = ()) -> None:
    """Writes what was staged in `states`, if all of the step is finite.

    Args:
      states: of all buckets of the step.
      finite: further verdicts, scalar bools that are the same on all workers.
    """
    staged = [state for state in states if state.staged]
    if not staged:
        return

    def write():
        for state in staged:
            for name, value in state.staged.items():
                state[name].assign(value, read_value=False)

    tf.cond(tf.reduce_all([*(state.finite for state in staged), *finite]), write, lambda: None)


def hand_out(summed: tf.Tensor, dtype: tf.DType, share: Share) -> tuple[tf.Tensor, tf.Tensor]:
    """A sum in the gradient's dtype, and what that cannot hold: sum = handed out + left.

    Residuals may outgrow float16, and Inf would be skipped by loss scaling after the residuals were
    emptied. The first holder keeps what is left.

    Args:
      summed: float32 [n], the same on all workers.
      dtype: of the gradient.
      share: what this worker keeps.

    Returns:
      (`dtype` [n], float32 [length of its shard of n] for this worker's residual).
    """
    values = wire.narrow(summed, dtype)
    if share.holder > 0:
        return values, tf.zeros([share.length(summed.shape[0])])
    return values, shard_of(summed - tf.cast(values, tf.float32), share)


def fits(summed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Whether `dtype` can hold all of a sum, but for what rounding takes away, so that none need follow."""
    return tf.reduce_all(tf.abs(summed) <= tf.cast(dtype.max, tf.float32))


def flush(bucket: tf.Tensor, own: tf.Tensor, share: Share) -> tf.Tensor:
    """float32 `bucket` [N] plus this worker's residual: summed over all workers, all that there is.

    It writes nothing: the caller stages what then is left.
    """
    return tf.cast(bucket, tf.float32) + in_place(own, bucket.shape[0], share)


def sum_with(
    kept: tf.Tensor, bucket: tf.Tensor, leaves: tf.Tensor, share: Share,
    total: Callable[[tf.Tensor, bool], tuple[tf.Tensor, Any]],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any]:  # fmt: skip
    """A sum of `bucket` over the workers, and where `leaves` says so of all that they keep as well.

    Args:
      kept: this worker's residual.
      bucket: [N].
      leaves: whether what is kept is added; scalar bool, the same on all workers.
      share: what this worker keeps.
      total: sums a vector over the workers, given whether it is `State.lossless`; returns the sum, and
        whatever else the caller needs.

    Returns:
      (the sum in the dtype of `bucket`, the new residual, whether nothing needs to follow, the rest of what
      `total` returned).
    """

    def with_kept():
        summed, rest = total(flush(bucket, kept, share), True)
        values, left = hand_out(summed, bucket.dtype, share)
        return values, left, fits(summed, bucket.dtype), rest

    def without():
        summed, rest = total(bucket, False)
        return summed, tf.convert_to_tensor(kept), tf.constant(True), rest

    return tf.cond(leaves, with_kept, without)


def shard_of(whole: tf.Tensor, share: Share) -> tf.Tensor:
    """This worker's shard of `whole` [N], padded with zeros."""
    length = share.length(whole.shape[0])
    own = whole[share.shard * length : (share.shard + 1) * length]
    return tf.pad(own, [[0, length - own.shape[0]]])


def in_place(own: tf.Tensor, n: int, share: Share) -> tf.Tensor:
    """[N], zero but for this worker's shard, which is `own`."""
    begin = min(n, share.shard * share.length(n))
    part = own[: n - begin]
    return tf.pad(part, [[begin, n - begin - part.shape[0]]])
