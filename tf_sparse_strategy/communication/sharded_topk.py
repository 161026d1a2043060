"""ShardedTopK: each node sums a block of the selected entries; volume does not grow with the nodes."""

import dataclasses
import math

import tensorflow as tf

from custom_ops import mstopk
from tf_sparse_strategy import cost_model
from tf_sparse_strategy.communication.messages import (
    MessageCommunication,
    add_up,
    replaced,
    take_out,
    unpack,
)
from tf_sparse_strategy.communication.packing import Packing, check_elements
from tf_sparse_strategy.communication.selectors import select
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.gradient_kinds import all_finite
from tf_sparse_strategy.residual import RESIDUAL, Share
from tf_sparse_strategy.topology import Topology

_RUN = 512  # elements: long enough to be moved at the speed of memory
_RUNS = 64  # of a block at least, as far as there are elements


@dataclasses.dataclass(frozen=True)
class Dealing:
    """How a vector of n elements is dealt to M blocks: short runs in turns, as cards.

    Blocks of consecutive elements would be of different layers. Each sends equally many entries, so a layer
    of large gradients would have to wait for its turns, block after block.

    Args:
      n: elements.
      blocks: M.

    Raises:
      ValueError: the padded vector has no int32 indices.

    Example:
      >>> deal = Dealing(5, 2)
      >>> deal.deal(deal.padded(tf.range(5.0))).numpy()
      array([[0., 2., 4.],
             [1., 3., 0.]], dtype=float32)
      >>> deal.place(1, tf.range(2)).numpy()
      array([1, 3], dtype=int32)
    """

    n: int
    blocks: int

    def __post_init__(self):
        check_elements(self.blocks * self.length)

    @property
    def run(self) -> int:
        """Elements of a run."""
        return max(1, min(_RUN, self.n // (_RUNS * self.blocks)))

    @property
    def length(self) -> int:
        """Of a block: n / M, rounded up to whole runs."""
        return -(-self.n // (self.run * self.blocks)) * self.run

    def padded(self, x: tf.Tensor) -> tf.Tensor:
        """[n] -> [M length], zeros at the end."""
        return tf.pad(x, [[0, self.blocks * self.length - self.n]])

    def deal(self, padded: tf.Tensor) -> tf.Tensor:
        """[M length] -> [M, length]."""
        runs = tf.reshape(padded, [self.length // self.run, self.blocks, self.run])
        return tf.reshape(tf.transpose(runs, [1, 0, 2]), [self.blocks, self.length])

    def place(self, block, positions: tf.Tensor) -> tf.Tensor:
        """Where in the padded vector the elements at `positions` of `block` are; they broadcast."""
        return (positions // self.run * self.blocks + block) * self.run + positions % self.run


@dataclasses.dataclass(frozen=True)
class ShardedTopK(MessageCommunication):
    """Two rounds of top-k between nodes: to the node that sums a block, and from it to all.

    The workers of a node share its sum as in `HiTopK`. Worker j's shard s_ij of n = N/G elements is dealt
    to M blocks of b = n/M, of which node m sums block m; k = density b entries of a block travel:

        a_i = s_ij + r_ij, dealt to blocks a_i1 ... a_iM
        c_im = the k entries of a_im of largest magnitude,  to each node m other than i
        t_m = a_mm + sum of c_im over i other than m
        d_m = the a k entries of t_m of largest magnitude,  to all nodes
        block m of r_ij <- a_im - c_im,   of r_mj <- t_m - d_m

    Who drops keeps: sum_i (s_ij + r_ij) = d + sum_i r_ij(new). A node's own block takes part whole, which
    costs no byte: what the node dropped of a sum meets the others' entries in the next one, without having
    to win a selection before.

    With w words for k entries (2k+1 with the defaults), per worker, between nodes: an all-to-all of
    4 w (M-1) bytes and an all-gather of a times as many, together 8 (1+a) K (M-1)/M bytes with
    K = density n and a = `applied`, whatever the number of nodes (`HiTopK`: 8 K (M-1)), in 2 (M-1)
    messages; in the node as `HiTopK`, with M messages of a block's sum. All messages have one size; there
    is no threshold that could drift.

    When not to use it: on two nodes `HiTopK` sends no more, in one round instead of two, and applies
    up to M times as many entries a step, which may outweigh its bytes on three. Only a K entries of the
    sum are applied here, and by SGD models have learned a little less for it (docs/convergence.md). On
    one node it is `Dense`.

    Args:
      density, error_feedback, wire_dtype, index_coding, selector: see `HiTopK`; the selector is of what a
        node sends, not of sums.
      applied: a, entries of a block's sum that are applied, for each that a node sends of the block;
        at least 1; default 1. With 3, coded messages are together shorter than uncoded ones with 1.

    Raises:
      ValueError: an argument is not one of these.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> scheme = tss.communication.ShardedTopK(
      ...     density=0.01, applied=3, wire_dtype="float16", index_coding="delta"
      ... )
      >>> strategy = tss.SparseStrategy(communication=scheme)

    Source: this library; in one hop what the spar-reduce-scatter of Zhao et al., "SparDL: Distributed
    Deep Learning Training with Efficient Sparse Communication", ICDE 2024, does in log M, on the shards
    of Shi et al., MLSys 2021.
    """

    applied: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.applied < math.inf:
            raise ValueError(
                f"ShardedTopK(applied={self.applied!r}) must be at least 1 and finite, e.g. 2 to apply two "
                "entries for each that a node sends."
            )

    def _sum_shard(self, x, state, share, collectives):
        own = state.get(RESIDUAL)
        n, holders, here = x.shape[0], share.holders, share.holder
        dealing, (packing, of_sum) = Dealing(n, holders), self._packings(n, share)
        acc = dealing.padded(x if own is None else x + own)
        blocks = dealing.deal(acc)
        away = [block for block in range(holders) if block != here]
        values, indices = (tf.gather(x, away) for x in select(blocks, packing.k, self.selector))
        messages = packing.pack(values, indices, all_finite(values))
        splits = [int(holder != here) for holder in range(holders)]
        received, _ = collectives.all_to_all(messages, splits, share.group, purpose="gradients")
        entries, came, finite = unpack(received, packing, holders - 1)
        arrived, finite = add_up(entries, came, finite, packing.n)
        total = (arrived + blocks[here])[tf.newaxis]
        winners, where = mstopk(total, of_sum.k)
        message = of_sum.pack(winners, where, finite)  # where `total` is not, its winners tell
        gathered = collectives.all_gather(message, share.group, purpose="gradients")

        def place(positions):  # zeros that pad the vector are added to its last element, if to any
            return tf.minimum(dealing.place(tf.range(holders)[:, tf.newaxis], positions), n - 1)

        whole, finite = self._spread(gathered, of_sum, holders, share, collectives, n, place)
        if own is None:
            return whole, {}, finite
        # Other blocks keep what was not sent of them, the own one what the winners leave of its sum.
        sent = dealing.place(tf.constant(away)[:, tf.newaxis], indices)
        kept = take_out(acc, sent, packing.lost(values))
        came = tf.reshape(came, [-1])  # some from several nodes: the same sum is written again
        kept = replaced(kept, dealing.place(here, came), tf.gather(total[0], came))
        kept = take_out(kept, dealing.place(here, where), of_sum.lost(winners))
        return whole, {RESIDUAL: kept[:n]}, finite

    def _packings(self, n: int, share: Share) -> tuple[Packing, Packing]:
        """The messages of a block, and of its sum."""
        of_block = self.packing(Dealing(n, share.holders).length)
        winners = min(of_block.n, round(self.applied * of_block.k))
        return of_block, dataclasses.replace(of_block, k=winners)

    def _cost_between(self, n: int, share: Share, topology: Topology, model: LinkModel) -> Cost:
        of_block, of_sum = self._packings(n, share)
        return (
            cost_model.selection(n, model)
            + cost_model.all_to_all(topology, 4 * of_block.words * share.holders, model, share.group)
            + cost_model.all_gather(topology, 4 * of_sum.words, model, share.group)
        )

    def _message_words(self, n: int, share: Share) -> int:
        _, of_sum = self._packings(n, share)
        return share.holders * of_sum.words
