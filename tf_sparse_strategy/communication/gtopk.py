"""GTopK: the top-k of the whole sum, merged along a tree."""

import dataclasses

import tensorflow as tf

from custom_ops import mstopk
from tf_sparse_strategy import cost_model
from tf_sparse_strategy.communication.messages import MessageCommunication, add_up, take_out, unpack
from tf_sparse_strategy.cost_model import Cost, LinkModel
from tf_sparse_strategy.residual import RESIDUAL, Share
from tf_sparse_strategy.topology import Topology

_Move = tuple[int, int]  # (sending holder, receiving holder)


def tree(holders: int) -> list[list[_Move]]:
    """The rounds in which a binomial tree brings everything to holder 0, for any number of holders.

    Example:
      >>> tree(5)
      [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    rounds, distance = [], 1
    while distance < holders:
        senders = range(distance, holders, 2 * distance)
        rounds.append([(sender, sender - distance) for sender in senders])
        distance *= 2
    return rounds


@dataclasses.dataclass(frozen=True)
class GTopK(MessageCommunication):
    """Selections are merged in pairs, and selected again, up a binomial tree; the last goes down it.

    The workers of a node share its sum as in `HiTopK`: holder i has a_i = s_i + r_i of n = N/G elements,
    and K = density n entries travel:

        c_i = top_K(a_i),   r_i <- a_i - c_i
        in each round   receiver:  t = c_own + c_received,  c_own = top_K(t),  r_own <- r_own + t - c_own
        u = c_0 of the last round, sent back along the tree

    The published algorithm clears what a worker sent wherever the coordinate is among the winners, and so
    loses what an inner merge dropped of it. Here who drops keeps: sum_i (s_i + r_i) = u + sum_i r_i(new).
    For any number of holders M; with w words in a message (2K+1 with the defaults):

        2 ceil(log2 M) rounds of at most one message of 4 w bytes per worker; 2 (M-1) messages of each shard
        in the node    4 n (G-1) + 4 min(w, n+1) (G-1) bytes per worker

    When not to use it: each round is a collective that waits for the one before, and a pass over n
    elements; `ShardedTopK` sends about as much in two rounds that all links share. Only K entries of the
    sum are applied, and those of many nodes compete for them. On one node it is `Dense`.

    Args:
      density, error_feedback, wire_dtype, index_coding, selector: see `HiTopK`; the selector is of a holder's
        own entries, not of sums.

    Raises:
      ValueError: an argument is not one that `HiTopK` takes.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(communication=tss.communication.GTopK(density=0.001))

    Source: Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
    Bandwidth Networks", ICDCS 2019, with the residuals of Zhao et al., "SparDL", ICDE 2024.
    """

    def _sum_shard(self, x, state, share, collectives):
        message, kept, _ = self._select(x, state)
        packing = self.packing(x.shape[0])
        rounds = tree(share.holders)
        for moves in rounds:
            received = _move(message, moves, share, collectives)
            if share.holder not in dict(moves).values():
                continue
            both = unpack(tf.concat([message, received], axis=0), packing, 2)
            total, finite = add_up(*both, packing.n)
            values, indices = (part[tf.newaxis] for part in mstopk(total, packing.k))
            message = packing.pack(values, indices, finite)
            if kept is not None:
                # Subtracted: Grappler makes one AddN of several additions, and sorts its inputs by name.
                kept -= take_out(-total, indices, packing.lost(-values))
        for moves in reversed(rounds):
            received = _move(message, [move[::-1] for move in moves], share, collectives)
            if share.holder in dict(moves):
                message = received
        summed, finite = self._spread(message, packing, 1, share, collectives)
        return summed, {} if kept is None else {RESIDUAL: kept}, finite

    def _cost_between(self, n: int, share: Share, topology: Topology, model: LinkModel) -> Cost:
        sent = 4 * self.packing(n).words
        cost = cost_model.selection(n, model)
        for moves in tree(share.holders):
            cost += cost_model.selection(n, model)
            for directed in (dict(moves), {receiver: sender for sender, receiver in moves}):
                cost += self._round(directed, sent, topology, model)
        return cost

    def _round(self, moves: dict[int, int], sent: int, topology: Topology, model: LinkModel) -> Cost:
        """One message of `sent` bytes from some holders' workers, each to another's."""
        to = []
        for worker in map(topology.of, range(topology.num_workers)):
            share = self.share(worker)
            peer = moves.get(share.holder)
            to.append(None if peer is None else worker.ranks(share.group)[peer])
        return cost_model.one_each(topology, to, sent, model)

    def _message_words(self, n: int, share: Share) -> int:
        return self.packing(n).words


def _move(message, moves, share: Share, collectives):
    """Sends `message` [1, words] from holder to holder; returns what this one receives, if anything."""
    to = dict(moves).get(share.holder)
    splits = [int(holder == to) for holder in range(share.holders)]
    mine = message[: sum(splits)]
    received, _ = collectives.all_to_all(mine, splits, share.group, purpose="gradients")
    return received
