"""Variables of which each worker holds a part: made, and told apart.

A table's variable is a slice of it, and so are the slots that an optimizer makes from that variable; with
`overlap.ShardedUpdate` other slots are, too. The strategy neither broadcasts their initial values nor sums
their gradients; checkpoints see the whole.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_strategy import keras_callers
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding import checkpoints, wholes
from tf_sparse_strategy.embedding.partition import ColumnPartition, Partition
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.overlap.variables import check_write
from tf_sparse_strategy.topology import Group

DRAWN = 1 << 16, 1 << 20  # elements of a table that are drawn at a time: at least, at most
Block = tuple[int, int, tf.Tensor]  # first row, one past the last, a worker's columns of them


def tensorflows(variable: Any) -> Any:
    """TensorFlow's variable in one of Keras 3; of any other kind itself."""
    if isinstance(variable, tf.distribute.DistributedValues):  # to ask for what it has not would read it
        return variable
    return getattr(variable, "_value", variable)


def strategy_of(variable: Any) -> Any:
    """The strategy that made a variable, TensorFlow's or Keras's; None where none did."""
    return getattr(tensorflows(variable), "distribute_strategy", None)


def local(variable: Any) -> Any:
    """This worker's own variable behind one of either Keras, or a strategy's; rows are read from it.

    `tf.gather` of the others makes a copy of the whole table first. Where a process has several replicas, the
    variable itself: TensorFlow takes the one of the replica.
    """
    given = keras_callers.stateless_value(variable)
    if given is not None:
        return given
    held = tensorflows(variable)
    if isinstance(held, tf.distribute.DistributedValues) and len(held.values) == 1:
        return held.values[0]
    return variable if held is None else held  # None: Keras makes it later


def of(variable: Any) -> Any:
    """The slice behind a variable of either Keras or of TensorFlow; None if all workers hold all of it."""
    variable = tensorflows(variable)
    return variable if getattr(type(variable), "is_slice", False) else None


def first(variables: Iterable[Any]) -> Any:
    """The slice behind the first of `variables` that is one; None if none is."""
    return next((held for held in map(of, variables) if held is not None), None)


def whole_shape(variable: Any) -> tuple[int, ...]:
    """The shape of `variable`, or of the whole that it is a slice of."""
    held = of(variable)
    return tuple(variable.shape) if held is None else held.partition.shape


def whole(variable: Any) -> np.ndarray:
    """The value of `variable`, or of the whole that it is a slice of: collective as `Wholes.of`."""
    held = of(variable)
    return variable.numpy() if held is None else held.slices.wholes.of(held)


def divided(variable: Any) -> Any:
    """The slice behind `variable` where other workers hold the rest of it, else None."""
    held = of(variable)
    return held if held is not None and held.partition.workers > 1 else None


def own(variable: Any, value: Any) -> Any:
    """What this worker keeps of `value`, which is whole, in `variable`.

    Raises:
      ValueError: `value` has another shape than the whole.
    """
    held = of(variable)
    if held is None:
        return value
    require_whole(variable, value)
    return held.partition.of(value, held.slices.rank)


def require_whole(
    variable: Any, value: Any, remedy: str = "Pass the whole of it: each worker takes its part."
) -> None:
    """Raises ValueError where `value` has another shape than the whole of the slice `variable`."""
    shape = of(variable).partition.shape
    if tuple(value.shape) != shape:
        raise ValueError(
            f"the variable {variable.name!r} has shape {shape}; got {tuple(value.shape)}. {remedy}"
        )


def variable_class(mirrored: type) -> type:
    """The class of slices.

    Args:
      mirrored: TensorFlow's class of variables that all workers hold.
    """

    class Slice(mirrored):
        """A part of a table or slot; its checkpoint is the whole, written by the first worker."""

        is_slice = True  # of the class: asking a variable of another one for it would read it
        partition: Partition | None = None
        slices: "Slices | None" = None
        delayed_rows: Any = None  # a scheduling.table.DelayedRows

        def _serialize_to_tensors(self):  # also to be told what to restore
            return self.slices.wholes.in_checkpoint(self)

        def _restore_from_tensors(self, restored_tensors):
            check_write(self)
            value = checkpoints.value_read(restored_tensors)
            if checkpoints.goes_by_slices(self):
                value = value[:, : self.shape[1]]  # none of the one that was read
            else:
                require_whole(self, value, "Restore the checkpoint into a model of the same sizes.")
                value = self.partition.of(value, self.slices.rank)
            return self.values[0].assign(value)

        def _export_to_saved_model_graph(self, *args, **kwargs):
            if self.partition.workers > 1:
                raise NotImplementedError(
                    f"the sharded table {self.name!r} cannot be part of a SavedModel; load its weights in "
                    "one process, into keras.layers.Embedding, and save there."
                )
            return super()._export_to_saved_model_graph(*args, **kwargs)

    return Slice


class _Making(threading.local):
    """Of the thread: the slices that it makes."""

    partition = None  # of the slices that it makes
    blocks = None  # that the next one is filled with


class Slices:
    """One strategy's slices.

    Args:
      collectives: of this worker.
      counts: tells whether a row of this worker's batch counts, a bool; None where all batches' rows do.
    """

    def __init__(self, collectives: Collectives, counts: Callable[[], tf.Tensor | None]):
        self.collectives = collectives
        self.counts = counts
        # Whose columns a worker's exchanges are of (party.py).
        self.group = Group.CROSS if collectives.topology.is_nested else Group.GLOBAL
        self.tables = weakref.WeakSet()  # the layers that have them
        self.delayed = None  # the strategy's scheduling.updates.DelayedUpdates, if it delays rows
        self._made = []  # weak references; the workers make them in the same order
        self.wholes = wholes.Wholes(collectives, self._made)
        self._local = _Making()

    @property
    def rank(self) -> int:
        """This worker."""
        return self.collectives.topology.rank

    def widths(self, partition: ColumnPartition) -> list[int]:
        """How many columns each worker of this one's `group` holds."""
        return [partition.widths[rank] for rank in self.collectives.topology.ranks(self.group)]

    @property
    def are_divided(self) -> bool:
        """Whether there are slices that are less than the whole."""
        return bool(self._made) and self.collectives.topology.num_workers > 1

    # ---- making ---------------------------------------------------------------------------------

    def making(self, partition: Partition | None) -> contextlib.AbstractContextManager:
        """While this lasts, variables made under the strategy are slices; of None, whole."""
        return while_set(self._local, partition=partition, blocks=None)

    def partition_beside(self, reference: Any) -> Partition | None:
        """The partition of a variable about to be made; None if it is no slice.

        Args:
          reference: the variable that a slot is made for, or None.
        """
        held = of(reference)
        return self._local.partition if held is None else held.partition

    def add(self, variable: Any, partition: Partition) -> None:
        """Makes a new variable known as a slice, and puts into it what `filled_with` has kept for it."""
        variable.partition, variable.slices = partition, self
        blocks, self._local.blocks = self._local.blocks, None
        with tf.init_scope():
            own = variable.values[0]
            for first, end, rows in blocks or ():
                own.scatter_update(tf.IndexedSlices(rows, tf.range(first, end)))
            if blocks is not None:  # or each read of all would copy it, as after updates of rows
                tf.raw_ops.DisableCopyOnRead(resource=own.handle)
        if self.delayed is not None:
            variable.owner = self.delayed
        self._made.append(weakref.ref(variable))

    def filled_with(self, blocks: Iterator[Block], partition: ColumnPartition, dtype) -> tf.Tensor:
        """An initial value of this worker's columns: zeros, until `add` puts `blocks` into the variable.

        So the columns are held once; put together before, they would be there two or three times.
        """
        self._local.blocks = blocks
        return tf.zeros([partition.rows, partition.widths[self.rank]], dtype)

    def drawn(
        self, rows: Callable[[int, int], tf.Tensor], partition: ColumnPartition
    ) -> Iterator[Block]:
        """This worker's columns of the table whose rows [first, end) are `rows(first, end)`."""
        few = partition.rows * partition.columns // (32 * partition.workers)  # of what a worker will hold
        least, most = DRAWN
        for first, end in partition.chunks(min(max(few, least), most)):
            yield first, end, partition.of(rows(first, end), self.rank)

    def scatter(
        self, table: tf.Tensor | None, partition: ColumnPartition, dtype
    ) -> Iterator[Block]:
        """This worker's columns of the first worker's `table`, None on others. Collective."""
        workers, width = range(partition.workers), partition.widths[self.rank]
        for first, end in partition.chunks(wholes.CHUNK):
            sent, splits = tf.zeros([0], dtype), [0] * len(workers)
            if table is not None:
                with tf.device("CPU:0"):  # where the table is: a GPU has memory for some columns
                    rows = table[first:end]
                    parts = [tf.reshape(partition.of(rows, rank), [-1]) for rank in workers]
                    sent, splits = tf.concat(parts, 0), [part.shape[0] for part in parts]
            received, _ = self.collectives.all_to_all(sent, splits, purpose="scatter_table")
            yield first, end, tf.reshape(received, [end - first, width])
