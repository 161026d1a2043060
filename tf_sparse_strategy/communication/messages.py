"""Schemes whose messages have one size: K values and indices each, packed."""

import abc
import dataclasses

import tensorflow as tf

from custom_ops import mstopk_error_feedback, replace_entries, sum_entries
from tf_sparse_strategy.communication.packing import INDEX_CODINGS, WIRE_DTYPES, Packing
from tf_sparse_strategy.communication.selectors import SELECTORS, select
from tf_sparse_strategy.communication.sparse import SparseCommunication
from tf_sparse_strategy.gradient_kinds import all_finite
from tf_sparse_strategy.residual import RESIDUAL, Share, State
from tf_sparse_strategy.topology import Group


@dataclasses.dataclass(frozen=True)
class MessageCommunication(SparseCommunication):
    """Sends the largest entries in messages of a fixed size; arguments as `HiTopK` describes them."""

    wire_dtype: str | None = None
    index_coding: str = "int32"
    selector: str = "exact"

    def __post_init__(self):
        super().__post_init__()
        name = type(self).__name__
        for argument, allowed in (
            ("wire_dtype", WIRE_DTYPES),
            ("index_coding", INDEX_CODINGS),
            ("selector", SELECTORS),
        ):
            given = getattr(self, argument)
            if given not in allowed:
                raise ValueError(f"{name}({argument}={given!r}) is not one of {allowed}.")
            # tf.float16, say, is equal to its name, but read otherwise in checkpoints.
            object.__setattr__(self, argument, allowed[allowed.index(given)])

    @property
    def _is_dense(self) -> bool:
        return super()._is_dense and (self.wire_dtype is None or self.index_coding == "int32")

    def _result_bytes(self, n: int, share: Share) -> int:
        return 4 * min(self._message_words(n, share), n + 1)  # as messages, or dense with a flag

    @abc.abstractmethod
    def _message_words(self, n: int, share: Share) -> int:
        """Words of the sum of a shard of `n` elements, as messages."""

    def packing(self, n: int) -> Packing:
        """The message of K of `n` elements."""
        return Packing(n, self.count(n), self.wire_dtype, self.index_coding)

    def _select(self, x: tf.Tensor, state: State) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
        """Selects from `x` [n] plus residual: (message [1, words], what stays or None, indices [K])."""
        packing, own = self.packing(x.shape[0]), state.get(RESIDUAL)
        if own is None or self.selector != "exact":
            acc = x if own is None else x + own
            values, indices = select(acc, packing.k, self.selector)
            kept = None if own is None else take_out(acc, indices, packing.lost(values))
        else:
            values, indices, kept, _ = mstopk_error_feedback(x, own, packing.k)
            if (lost := packing.lost(values)) is not None:
                kept = take_out(kept, indices, lost)
        message = packing.pack(values[tf.newaxis], indices[tf.newaxis], all_finite(values))
        return message, kept, indices

    def _spread(self, messages, packing, count, share, collectives, n=None, place=None):
        """The sum of all shards, each added up message by message, in order.

        Workers of a node gather the messages, or the sums where these are shorter.

        Args:
          messages: int32 [count, words] for this worker's shard, the same on all of its holders.
          packing: of a message.
          count: number of messages.
          share: what this worker keeps.
          collectives: of this worker.
          n: elements of a shard; those of a message by default.
          place: indices [shards, count, K] of messages -> those of the shard, where these differ.

        Returns:
          (float32 [S * n], scalar bool whether all of it is finite), the same on all workers.
        """
        shards, n = share.shards, n or packing.n
        as_messages = count * packing.words <= n + 1
        if as_messages and shards > 1:
            messages = collectives.all_gather(messages, Group.LOCAL, purpose="gradients")
        values, indices, finite = unpack(messages, packing, count, shards if as_messages else 1)
        total, finite = add_up(values, place(indices) if place else indices, finite, n)
        if as_messages or shards == 1:
            return total, finite
        flagged = tf.concat([total, tf.cast(finite, tf.float32)[tf.newaxis]], axis=0)
        gathered = collectives.all_gather(flagged, Group.LOCAL, purpose="gradients")
        rows = tf.reshape(gathered, [shards, n + 1])
        return tf.reshape(rows[:, :n], [-1]), tf.reduce_all(rows[:, n] > 0)


def unpack(messages, packing, count, shards=1):
    """(values [shards, count, K], indices, whether all are finite) of messages [shards * count, words]."""
    values, indices, finite = packing.unpack(messages)
    shape = [shards, count, packing.k]
    return tf.reshape(values, shape), tf.reshape(indices, shape), finite


def add_up(values, indices, finite, n):
    """The sum of what `unpack` returns: (float32 [shards * n], whether contributions and sums are finite).

    Message by message. Indices in one are distinct, but those of zeros, so that the order of additions, and
    every bit of the result, is the same on every worker and device.
    """
    total, sums_finite = sum_entries(values, indices, n)
    return total, tf.logical_and(finite, sums_finite)


def take_out(x: tf.Tensor, indices: tf.Tensor, lost: tf.Tensor | None) -> tf.Tensor:
    """`x` [n] without what was sent from `indices`, of any shape, but with what the wire `lost` of it."""
    return replaced(x, indices, tf.zeros([]) if lost is None else lost)


def replaced(x: tf.Tensor, indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """`x` [n] with `values`, one for each of `indices` or one for all, in the place of its own."""
    if values.shape.rank:
        values = tf.reshape(values, [1, -1])
    rows = replace_entries(tf.reshape(x, [1, -1]), tf.reshape(indices, [1, -1]), values)
    return tf.reshape(rows, [-1])
