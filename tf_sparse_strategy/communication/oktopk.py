"""OkTopK: thresholds that are reused, and regions of the vector that each node sums."""

import dataclasses
import math
import numbers

import tensorflow as tf

from custom_ops import mstopk, sum_entries
from tf_sparse_strategy import cost_model
from tf_sparse_strategy.bucketing import BucketSpec
from tf_sparse_strategy.call_site import plain_variable
from tf_sparse_strategy.communication.sparse import SparseCommunication
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import AGE, RESIDUAL, Share
from tf_sparse_strategy.topology import Group, Topology

_IMBALANCE = 4  # the paper's: entries are dealt out anew where a node has this many times its part
_FEW, _MANY = 2 / 3, 5 / 4  # parts of K between which a threshold lets pass, in the authors' program
_CORRECTION = 1 / 16  # with 1/8 the global threshold swings, where few sums are much larger than others

PASSED = "passed"  # the state's name of the entries that passed the local threshold as it was, as a part of K


@dataclasses.dataclass(frozen=True)
class OkTopK(SparseCommunication):
    """Near-optimal sparse all-reduce: what exceeds a threshold, summed by region, and the top of the sums.

    The workers of a node share its sum as in `HiTopK`; holder i has a_i = s_i + r_i of n = N/G elements,
    K = density n, and M holders:

        every threshold_period steps   th = the K-th largest |a_i|, at once where fewer than 2/3 K pass or
                                       more than 5/4 K
        every boundary_period steps    boundaries = the mean over i of those that halve, third, ... what
                                       exceeds th in a_i
        c_i = a_i where |a_i| >= th;   node m sums region m of all c_i: t
        every threshold_period steps   TH = the K-th largest |t|, in the next step where it was 0
        u = t where |t| >= TH, to all; r_i <- a_i, but 0 where both c_i and u are not
        TH <- TH (max(|u|, 1) / K)^(1/16)

    Exactly conserving: sum_i a_i = u + sum_i r_i(new). Where a node has more than four times its part of
    u, entries are first dealt out evenly. Per worker, where large entries spread evenly over regions:

        in the node    4 n (G-1) + 8 |u| (G-1) bytes, in 2 (G-1) messages
        between nodes  8 (c + |u|) (M-1)/M bytes, in 2 (M-1) messages, one more for each that is dealt to;
                       c is 2/3 to 5/4 of K (but for equal magnitudes, which all pass, and zeros), |u| from K,
                       after TH is renewed, to about 2 K (5/4 M K at most)
        of all         a ring of P-1 messages of 8 bytes: how many sums each has, and whether TH was 0

    and when thresholds are renewed 4 bytes for each of up to 5/4 M K sums and the boundaries' means. Of the
    paper's rotation of destinations the all-to-all itself takes care, in whose rounds every worker has
    another partner (docs/congestion_control.md).

    When not to use it: message sizes change with each step, so that Horovod negotiates each anew.
    `ShardedTopK` sends about as much, in two messages of a fixed size.

    Args:
      density, error_feedback: see `HiTopK`.
      threshold_period: steps for which thresholds are used; the paper takes 32 to 128; default 32.
      boundary_period: steps for which boundaries are used; default 64, as in the paper.
      flat: every worker is a holder of its own, M = P and G = 1, as in the paper, wherever it is. Everything
        then goes over the slow links, and residuals take G times the memory. Default False.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.OkTopK(density=0.01))

    Source: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022,
    Algorithms 1 and 2.
    """

    threshold_period: int = 32
    boundary_period: int = 64
    flat: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name in ("threshold_period", "boundary_period"):
            period = getattr(self, name)
            if not (isinstance(period, numbers.Integral) and period >= 1):
                raise ValueError(f"OkTopK({name}={period!r}) must be at least 1 step, in whole ones.")

    def share(self, topology: Topology) -> Share:
        return Share.per_worker(topology) if self.flat else super().share(topology)

    def state(self, bucket: BucketSpec, topology: Topology) -> dict[str, tf.Variable]:
        if not self.drops(bucket.num_elements, bucket.dtype, topology):
            return {}
        return {
            **super().state(bucket, topology),
            AGE: plain_variable(0, dtype=tf.int64),
            "local_threshold": plain_variable(0.0),
            "global_threshold": plain_variable(0.0),
            "overdue": plain_variable(0, dtype=tf.int64),  # 1: some worker's global one is 0
            PASSED: plain_variable(0.0),
            "boundaries": plain_variable(tf.zeros([self.share(topology).holders - 1], tf.int32)),
        }

    def _sum_shard(self, x, state, share, collectives):
        n, k, age = x.shape[0], self.count(x.shape[0]), state[AGE]
        acc = x + state[RESIDUAL] if RESIDUAL in state else x
        # The local threshold is renewed without the others. The global one takes a collective that all must
        # join; so it follows the number of its sums, and 0, which none lowers or raises, is renewed.
        due = age % self.threshold_period == 0
        renewed = tf.logical_or(due, state["overdue"] > 0)
        finite_here = tf.reduce_all(tf.math.is_finite(acc))
        local, selected, chosen, passed = _passing(acc, k, due, state["local_threshold"], finite_here)
        boundaries = tf.cond(
            age % self.boundary_period == 0,
            lambda: _agree_on_boundaries(chosen, n, share, collectives),
            state["boundaries"].read_value,
        )

        ends = tf.concat([[0], tf.searchsorted(chosen, boundaries), [tf.size(chosen)]], axis=0)
        rows = _pack(tf.gather(acc, chosen), chosen)
        received, _ = collectives.all_to_all(
            rows, ends[1:] - ends[:-1], share.group, purpose="gradients"
        )
        total, total_is_finite = _scatter(received, n)

        def threshold_of_all():
            sums = tf.boolean_mask(total, total != 0)
            return _kth_largest(collectives.all_gather(sums, share.group, purpose="gradients"), k)

        overall = tf.constant(0.0)
        if k < n:
            overall = tf.cond(renewed, threshold_of_all, state["global_threshold"].read_value)
        winners = _places(_exceeds(total, overall, total_is_finite))
        rows = _pack(tf.gather(total, winners), winners)
        absent = tf.logical_and(overall == 0, k < n)
        notes = tf.stack([tf.size(winners), tf.cast(absent, tf.int32)])
        everyone = collectives.all_gather(notes[tf.newaxis], purpose="gradients")
        sizes = everyone[:, 0]
        sums = tf.reduce_sum(tf.gather(sizes, collectives.topology.ranks(share.group)))
        rows = _balance(rows, sizes, share, collectives)

        rows = collectives.all_gather(rows, share.group, purpose="gradients")
        if share.shards > 1:
            rows += tf.constant([[0, share.shard * n]])
            rows = collectives.all_gather(rows, Group.LOCAL, purpose="gradients")
        # What is not finite passes all thresholds, so that every worker has it in the sum.
        summed, finite = _scatter(rows, share.shards * n)

        new = {
            AGE: age + 1,
            "local_threshold": local,
            # Not 0 where no sum passed: the next step would send all.
            "global_threshold": overall * (tf.cast(tf.maximum(sums, 1), tf.float32) / k) ** _CORRECTION,
            "overdue": tf.cast(tf.reduce_max(everyone[:, 1]), tf.int64),
            PASSED: tf.cast(passed, tf.float32) / k,
            "boundaries": boundaries,
        }
        if RESIDUAL in state:
            applied = summed[share.shard * n : (share.shard + 1) * n] != 0
            new[RESIDUAL] = tf.where(tf.logical_and(selected, applied), 0.0, acc)
        return summed, new, finite

    def _cost_between(self, n: int, share: Share, topology: Topology, model: LinkModel) -> Cost:
        """Expected, where large entries spread evenly over regions, and K pass the thresholds."""
        whole = self._result_bytes(n, share)
        renewal = cost_model.all_gather(topology, 4 * self.count(n), model, share.group)
        consensus = cost_model.all_reduce(topology, 8 * (share.holders - 1), model, share.group)
        return (
            cost_model.selection(2 * n, model)  # of own entries, and of the sums
            + cost_model.all_to_all(topology, whole, model, share.group)
            + renewal.every(self.threshold_period)
            + consensus.every(self.boundary_period)
            + cost_model.all_gather(topology, 8, model)
            + cost_model.all_gather(topology, whole // share.holders, model, share.group)
        )

    def _result_bytes(self, n: int, share: Share) -> int:
        return 8 * share.holders * -(-self.count(n) // share.holders)  # balanced over the holders


def _exceeds(x, threshold, is_finite):
    """Zeros never do, or an all-zero gradient would be sent whole; of NaNs the first, which all must see."""
    large = tf.logical_and(tf.abs(x) >= threshold, x != 0)

    def or_nan():
        nan = tf.math.is_nan(x)
        first = tf.argmax(tf.cast(nan, tf.int32)) == tf.range(tf.size(x, tf.int64))
        return tf.logical_or(large, tf.logical_and(nan, first))

    return tf.cond(is_finite, lambda: large, or_nan)


def _passing(x, k: int, due, held, is_finite):
    """(The threshold, what passes it, where, how many passed `held`: k, where none was held).

    It is `held`, or a new one where that is `due` or fewer or more pass.
    """

    def by(threshold):
        passing = _exceeds(x, threshold, is_finite)
        return threshold, passing, _places(passing)

    if k == x.shape[0]:
        return *by(tf.constant(0.0)), k
    old = by(held.read_value())
    number = tf.size(old[2])
    fits = tf.logical_and(number >= math.ceil(_FEW * k), number <= int(_MANY * k))
    new = tf.cond(tf.logical_and(fits, tf.logical_not(due)), lambda: old, lambda: by(_kth_largest(x, k)))
    return *new, tf.where(held == 0, k, number)


def _places(marked):
    """int32: those of [n] that are marked."""
    return tf.cast(tf.where(marked)[:, 0], tf.int32)


def _kth_largest(x, k: int):
    """The k-th largest magnitude of `x`; 0 where there are not as many."""
    size = tf.size(x)
    largest = mstopk(x, tf.minimum(k, size)).values
    return tf.where(size < k, 0.0, tf.reduce_min(tf.abs(largest)))


def _agree_on_boundaries(chosen, n: int, share: Share, collectives):
    """int32 [M-1]: the mean over holders of the boundaries that split `chosen` evenly."""
    cuts = tf.range(1, share.holders)
    each = tf.size(chosen) // share.holders
    even = cuts * -(-n // share.holders)
    own = tf.cond(each > 0, lambda: tf.gather(chosen, each * cuts), lambda: even)
    summed = collectives.all_reduce(tf.cast(own, tf.int64), share.group, purpose="boundaries")
    return tf.cast(summed // share.holders, tf.int32)


def _balance(rows, sizes, share: Share, collectives):
    """Deals `rows`, of all holders in order, out evenly, if any shard's are very uneven.

    Args:
      rows: int32 [m, 2] of this worker.
      sizes: int32 [P], m of each worker; the same everywhere, so that all decide alike.
      share: what this worker keeps.
      collectives: of this worker.
    """
    if share.holders <= _IMBALANCE:  # nor can one have more than all
        return rows
    topology = collectives.topology
    groups = tf.constant(
        sorted({topology.of(rank).ranks(share.group) for rank in range(topology.num_workers)})
    )
    by_group = tf.gather(sizes, groups)
    most, all_ = tf.reduce_max(by_group, axis=1), tf.reduce_sum(by_group, axis=1)
    uneven = tf.reduce_any(most * share.holders > _IMBALANCE * all_)

    def deal():
        own = tf.gather(sizes, topology.ranks(share.group))
        total, begin = tf.reduce_sum(own), tf.cumsum(own, exclusive=True)[share.holder]
        cuts = tf.range(share.holders + 1, dtype=tf.int64) * tf.cast(total, tf.int64)
        cuts = tf.cast(cuts // share.holders, tf.int32)
        inside = tf.clip_by_value(cuts, begin, begin + tf.shape(rows)[0])
        return collectives.all_to_all(
            rows, inside[1:] - inside[:-1], share.group, purpose="gradients"
        )[0]

    return tf.cond(uneven, deal, lambda: tf.identity(rows))


def _pack(values, indices):
    """int32 [m, 2]: the bits of float32 values, and their indices."""
    return tf.stack([tf.bitcast(values, tf.int32), indices], axis=1)


def _scatter(rows, n: int):
    """(float32 [n]: the sum of packed entries, whether all of it is finite)."""
    values = tf.bitcast(rows[:, 0], tf.float32)
    return sum_entries(values[tf.newaxis, tf.newaxis], rows[tf.newaxis, tf.newaxis, :, 1], n)
