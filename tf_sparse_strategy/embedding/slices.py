"""Variables of which each worker holds a part: made, told apart, gathered and scattered.

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
from tf_sparse_strategy.embedding.partition import ColumnPartition, Partition
from tf_sparse_strategy.hooking import while_set

CHUNK = 1 << 22  # elements of a table that are on their way at a time
DRAWN = 1 << 16, 1 << 20  # of one that are drawn at a time: at least, at most
Block = tuple[int, int, tf.Tensor]  # first row, one past the last, a worker's columns of them
_END = -1
_VALUE = "VARIABLE_VALUE"  # TensorFlow's name for a plain variable's value in a checkpoint


def tensorflows(variable: Any) -> Any:
    """TensorFlow's variable in one of Keras 3; of any other kind itself."""
    return getattr(variable, "_value", variable)


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
    return variable if isinstance(getattr(variable, "partition", None), Partition) else None


def first(variables: Iterable[Any]) -> Any:
    """The slice behind the first of `variables` that is one; None if none is."""
    return next((held for held in map(of, variables) if held is not None), None)


def whole_shape(variable: Any) -> tuple[int, ...]:
    """The shape of `variable`, or of the whole that it is a slice of."""
    held = of(variable)
    return tuple(variable.shape) if held is None else held.partition.shape


def whole(variable: Any) -> np.ndarray:
    """The value of `variable`, or of the whole that it is a slice of: collective as `Slices.whole`."""
    held = of(variable)
    return variable.numpy() if held is None else held.slices.whole(held)


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


def require_whole(variable: Any, value: Any) -> None:
    """Raises ValueError where `value` has another shape than the whole of the slice `variable`."""
    shape = of(variable).partition.shape
    if tuple(value.shape) != shape:
        raise ValueError(
            f"the variable {variable.name!r} has shape {shape}; got {tuple(value.shape)}. "
            "Pass the whole of it: each worker takes its part."
        )


def variable_class(mirrored: type, save_spec: type) -> type:
    """The class of slices.

    Args:
      mirrored: TensorFlow's class of variables that all workers hold.
      save_spec: its class of values that are computed when a checkpoint is written.
    """

    class Slice(mirrored):
        """A part of a table or slot; its checkpoint is the whole, written by the first worker."""

        partition: Partition | None = None
        slices: "Slices | None" = None
        delayed_rows: Any = None  # a scheduling.table.DelayedRows

        def _serialize_to_tensors(self):
            def whole():
                value = self.slices.written(self)
                return tf.zeros([0], self.dtype) if value is None else tf.constant(value)

            # A function: restoring asks for names, too, and must not gather.
            device = self.values[0].device
            return {_VALUE: save_spec(whole, "", "", dtype=self.dtype, device=device)}

        def _restore_from_tensors(self, restored_tensors):
            if self.slices.delayed is not None:
                self.slices.delayed.check_write(self.name)
            return self.values[0].assign(own(self, restored_tensors[_VALUE]))

        def _export_to_saved_model_graph(self, *args, **kwargs):
            if self.partition.workers > 1:
                raise NotImplementedError(
                    f"the sharded table {self.name!r} cannot be part of a SavedModel; load its weights in "
                    "one process, into keras.layers.Embedding, and save there."
                )
            return super()._export_to_saved_model_graph(*args, **kwargs)

    return Slice


class _UnderWay(threading.local):
    """What a thread does."""

    partition = None  # of the slices that it makes
    blocks = None  # that the next one is filled with
    asking = False  # whether it saves, and the other workers answer


class Slices:
    """One strategy's slices.

    Args:
      collectives: of this worker.
      counts: tells whether a row of this worker's batch counts, a bool; None where all batches' rows do.
    """

    def __init__(self, collectives: Collectives, counts: Callable[[], tf.Tensor | None]):
        self.collectives = collectives
        self.counts = counts
        self.delayed = None  # the strategy's scheduling.updates.DelayedUpdates, if it delays rows
        self._made = []  # weak references; the workers make them in the same order
        self._local = _UnderWay()

    @property
    def rank(self) -> int:
        """This worker."""
        return self.collectives.topology.rank

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
        for first, end in partition.chunks(CHUNK):
            sent, splits = tf.zeros([0], dtype), [0] * len(workers)
            if table is not None:
                with tf.device("CPU:0"):  # where the table is: a GPU has memory for some columns
                    rows = table[first:end]
                    parts = [tf.reshape(partition.of(rows, rank), [-1]) for rank in workers]
                    sent, splits = tf.concat(parts, 0), [part.shape[0] for part in parts]
            received, _ = self.collectives.all_to_all(sent, splits, purpose="scatter_table")
            yield first, end, tf.reshape(received, [end - first, width])

    # ---- gathering ------------------------------------------------------------------------------

    def whole(self, held: Any) -> np.ndarray:
        """The whole table of a slice: collective, unless the first worker asks in `asking()`."""
        return self.gather(held, everywhere=not self._has_asked(held))

    def written(self, held: Any) -> np.ndarray | None:
        """The whole of a slice for a checkpoint: on the first worker, None on others. Collective or asked."""
        self._has_asked(held)
        return self.gather(held, everywhere=False)

    def pass_rows(self, held: Any, take: Callable[[int, int, np.ndarray], None]) -> None:
        """Calls `take(first, end, rows [first, end))` for all rows of a divided table; collective as `whole`.

        What `take` raises is raised when the others, who do not know of it, have sent the rest.
        """
        self._pass(held, not self._has_asked(held), take)

    def gather(self, held: Any, everywhere: bool) -> np.ndarray | None:
        """The whole table on every worker, or on the first worker and None on others. Collective."""
        partition, local, table = held.partition, held.values[0], None
        if partition.workers == 1:
            self._check_read(held)
            return local.numpy()

        def put(first, end, rows):
            nonlocal table
            if table is None:
                table = np.empty(partition.grid.shape, local.dtype.as_numpy_dtype)
            table[first:end] = rows

        self._pass(held, everywhere, put)
        return None if table is None else partition.whole(table)

    def _pass(self, held, everywhere, take):
        """Calls `take` as `pass_rows` does, on workers that get rows."""
        failure = None
        for first, end, rows in self._gathered(held, everywhere):
            try:
                if rows is not None and failure is None:
                    take(first, end, rows)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _gathered(self, held, everywhere):
        """(first, end, rows [first, end)) of a divided table's grid; no rows on workers that get none."""
        self._check_read(held)
        grid, local = held.partition.grid, held.values[0]
        for first, end in grid.chunks(CHUNK):
            sent = tf.reshape(tf.gather(local, tf.range(first, end)), [-1])  # a slice would copy all
            if everywhere:
                received = self.collectives.all_gather(sent, purpose="gather_table")
            else:
                splits = [int(tf.size(sent))] + [0] * (grid.workers - 1)
                received, _ = self.collectives.all_to_all(sent, splits, purpose="gather_table")
            rows = None
            if everywhere or self.rank == 0:
                ends = np.cumsum([(end - first) * width for width in grid.widths])
                blocks = zip(np.split(received.numpy(), ends[:-1]), grid.widths, strict=True)
                rows = np.concatenate([block.reshape(end - first, width) for block, width in blocks], axis=1)
            yield first, end, rows

    def _check_read(self, held):
        if self.delayed is not None:
            self.delayed.check_read(held.name)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """On the first worker, while it saves: what reads tables asks the others, which are in `answer()`."""
        try:
            with while_set(self._local, asking=True):
                yield
        finally:
            self._request(_END)

    def answer(self) -> None:
        """On the other workers, while the first is in `asking()`: sends what it asks for."""
        while (index := self._request(_END)) != _END:
            self.gather(self._made[index](), everywhere=False)

    def _has_asked(self, held) -> bool:
        """In `asking()`: asks the other workers for a slice, and says so."""
        if self._local.asking:
            made = [known() for known in self._made]
            self._request(next(i for i, known in enumerate(made) if known is held))
        return self._local.asking

    def _request(self, index: int) -> int:
        asked = self.collectives.broadcast(tf.constant(index, tf.int64), purpose="table_asked_for")
        return int(asked)
