"""Which sample stands where: every epoch's order as a pure function of a few integers.

N samples, global batches of B rows, epochs of S steps. Positions 0 ... N - 1 lie in rows: position
k B + b is row b's k-th member. A base permutation of the run's seed puts samples on positions, so that
no file order survives. Then

  local      in each epoch each row b permutes its own members: who owns row b needs the same N / B samples
             in each epoch, and never another's
  exchange   the same, but before epoch e = 1, 2, ... one of W = min(ceil(1 / q), N) windows of consecutive
             positions, the (e - 1 mod W)-th, is permuted as a whole: q of the samples change rows
  global     all positions are permuted in each epoch

The rows are the unit of ownership. Worker p of P owns rows p, p + P, ...: the global batch does not depend
on P, nor does a resumed run depend on anything but (seed, step).

The permutations are `custom_ops.permuted_index`: any element in constant time, no buffer, not stateful (so
that an iterator can be saved).

Source of the scheme: canonical nodes of MosaicML Streaming; partial exchange after Nguyen et al., Why
Globally Re-shuffle? (IPDPS 2022).
"""

import math
import operator
from typing import NamedTuple

import tensorflow as tf

from custom_ops.permutation.permutation import permuted_index

SHUFFLES = ("local", "exchange", "global")
_SEEDS = 1 << 62  # of augment_seeds, 31 bits in each of their numbers
# What a permutation is for, a word of its key.
_BASE, _ROW, _WINDOW, _ALL, _AUGMENT = range(5)


class Order(NamedTuple):
    """All that an order depends on.

    Attributes:
      samples: N.
      batch_size: B, of all workers together.
      seed: of the run.
      shuffle: "local", "exchange" or "global".
      fraction: q, of the samples that change rows per epoch; for "exchange".
      drop_remainder: whether epochs end with the last whole batch; which samples that leaves out changes
        from epoch to epoch.
    """

    samples: int
    batch_size: int
    seed: int = 0
    shuffle: str = "local"
    fraction: float = 0.1
    drop_remainder: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """S."""
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_remainder)


def whole(name: str, value) -> int:
    """An argument as Python's int: NumPy's would overflow.

    Raises:
      TypeError: it is no whole number.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}: must be a whole number.")
    return operator.index(value)


def require_samples(samples: int) -> None:
    """Raises ValueError where there is none."""
    if samples < 1:
        raise ValueError("The source has no samples: check its path or pattern.")


def check(order: Order) -> Order:
    """Returns the order; raises ValueError where it cannot be."""
    require_samples(order.samples)
    if order.batch_size < 1:
        raise ValueError(f"batch_size={order.batch_size}: must be at least 1.")
    if order.drop_remainder and order.batch_size > order.samples:
        raise ValueError(
            f"batch_size={order.batch_size} with drop_remainder=True: the source has only "
            f"{order.samples} samples, so that every epoch would be empty; use at most "
            f"{order.samples}, or drop_remainder=False."
        )
    if order.shuffle not in SHUFFLES:
        raise ValueError(f"shuffle={order.shuffle!r}: choose one of {', '.join(SHUFFLES)}.")
    if not 0 <= order.seed < 1 << 32:
        raise ValueError(f"seed={order.seed}: must be an integer of 32 bits, 0 to 2**32 - 1.")
    if not 0 < order.fraction <= 1:
        raise ValueError(f"fraction={order.fraction}: must be above 0 and at most 1.")
    return order


def _permuted(index, order: Order, size, purpose: int, first=0, second=0):
    """Elements `index` [n] of permutations of `size` elements; `first`, `second` and `size` may be [n]."""
    return permuted_index(index, size, key=[order.seed, purpose, first, second])


def windows(order: Order) -> list[tuple[int, int]]:
    """The W windows of positions, [begin, end), that take turns in changing rows."""
    count = min(math.ceil(1 / order.fraction), order.samples)
    edges = [round(order.samples * w / count) for w in range(count + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _exchanged(position, epoch, order: Order):
    """Where the sample of a position stood before all exchanges up to `epoch`."""
    edges = windows(order)
    begins = tf.constant([begin for begin, _ in edges], tf.int64)
    sizes = tf.constant([end - begin for begin, end in edges], tf.int64)
    window = tf.searchsorted(begins, position, side="right", out_type=tf.int64) - 1
    begin, size = tf.gather(begins, window), tf.gather(sizes, window)
    rounds = (tf.cast(epoch, tf.int64) + len(edges) - 1 - window) // len(edges)
    moved = begin + _permuted(position - begin, order, size, _WINDOW, rounds, window)
    return tf.where(rounds > 0, moved, position)


def member(row, turn, epoch, order: Order):
    """The samples that the `turn`-th step of an epoch shows in rows `row`, [n]; turn and epoch may be [n]."""
    row = tf.cast(row, tf.int64)
    turn = tf.cast(turn, tf.int64) + tf.zeros_like(row)
    samples, batch = order.samples, order.batch_size
    if order.shuffle == "global":
        return _permuted(turn * batch + row, order, samples, _ALL, epoch)
    members = (samples - 1 - row) // batch + 1
    position = _permuted(turn, order, members, _ROW, epoch, row) * batch + row
    if order.shuffle == "exchange":
        position = _exchanged(position, epoch, order)
    return _permuted(position, order, samples, _BASE)


def rows_of(worker: int, workers: int, batch_size: int) -> range:
    """The rows of a global batch that a worker owns; raises ValueError where that makes no sense."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker={worker} of workers={workers}: must be 0 to {workers - 1}.")
    if batch_size < workers:
        raise ValueError(
            f"batch_size={batch_size} with {workers} workers: it is the size of the *global* batch, and "
            f"each worker needs a row of it; use at least {workers}."
        )
    return range(worker, batch_size, workers)


def batch_ids(step, order: Order, rows: range) -> tuple[tf.Tensor, tf.Tensor]:
    """The samples of some rows of the batch of a step.

    Args:
      step: int64 scalar tensor, counted from the beginning of the run.
      order: what the run's order is.
      rows: e.g. those of one worker.

    Returns:
      int64 [b] sample numbers, in the order of the rows: b = len(rows), or fewer in an epoch's last,
      incomplete batch; and the epoch, int64 scalar.

    Example:
      >>> order = Order(samples=6, batch_size=4, shuffle="global")
      >>> batches = [batch_ids(tf.constant(step, tf.int64), order, range(4))[0] for step in range(2)]
      >>> [len(ids) for ids in batches], sorted(int(i) for ids in batches for i in ids)
      ([4, 2], [0, 1, 2, 3, 4, 5])
    """
    step = tf.cast(step, tf.int64)
    epoch, turn = step // order.steps_per_epoch, step % order.steps_per_epoch
    row = tf.range(rows.start, rows.stop, rows.step, tf.int64)
    if order.samples % order.batch_size and not order.drop_remainder:
        row = tf.boolean_mask(row, turn * order.batch_size + row < order.samples)
    return member(row, turn, epoch, order), epoch


def ids_of(steps: range, order: Order, rows: range) -> tf.Tensor:
    """The samples of some rows of the batches of successive steps of one epoch, int64 [n]."""
    epoch, first = divmod(steps.start, order.steps_per_epoch)
    turns = tf.range(first, first + len(steps), dtype=tf.int64)
    row, turn = tf.meshgrid(tf.range(rows.start, rows.stop, rows.step, tf.int64), turns)
    there = turn * order.batch_size + row < order.samples
    return member(row[there], turn[there], epoch, order)


def augment_seeds(ids: tf.Tensor, epoch, order: Order) -> tf.Tensor:
    """A seed for each sample of a batch, another in each epoch: int64 [b, 2], for `tf.random.stateless_*`."""
    seeds = _permuted(ids, order, _SEEDS, _AUGMENT, epoch)
    return tf.stack([seeds // (1 << 31), seeds % (1 << 31)], 1)


def exchanged_window(epoch: int, order: Order) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What an exchange moves, for an order with shuffle="exchange".

    Args:
      epoch: the one after the exchange, 1 or more.

    Returns:
      int64 [n] each: rows of the window's positions, the samples there before, and those after.
    """
    edges = windows(order)
    begin, end = edges[(epoch - 1) % len(edges)]
    positions = tf.range(begin, end, dtype=tf.int64)

    def samples(at):
        base = _exchanged(positions, tf.constant(at, tf.int64), order)
        return _permuted(base, order, order.samples, _BASE)

    return positions % order.batch_size, samples(epoch - 1), samples(epoch)


class Span(NamedTuple):
    """A call of Keras's `fit`: epochs [initial_epoch, epochs) of `steps_per_epoch` steps, from `start` on."""

    start: int
    initial_epoch: int
    epochs: int
    steps_per_epoch: int

    def fit_arguments(self) -> dict[str, int]:
        """All but `start`, which is the dataset's."""
        return {name: value for name, value in self._asdict().items() if name != "start"}


def spans(start: int, epochs: int, steps_per_epoch: int) -> list[Span]:
    """How `fit` goes on at step `start`: the rest of an epoch that was begun, then whole ones.

    Example:
      >>> [tuple(span) for span in spans(start=25, epochs=4, steps_per_epoch=10)]
      [(25, 2, 3, 5), (30, 3, 4, 10)]
    """
    epoch, done = divmod(start, steps_per_epoch)
    found = []
    if done:
        found.append(Span(start, epoch, epoch + 1, steps_per_epoch - done))
        epoch += 1
    if epoch < epochs:
        found.append(Span(epoch * steps_per_epoch, epoch, epochs, steps_per_epoch))
    return [span for span in found if span.initial_epoch < epochs]
