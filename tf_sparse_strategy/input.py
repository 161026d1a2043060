"""Splits one global batch over the workers.

Data sharding: every worker reads the whole pipeline and keeps a contiguous slice of each global batch,
in rank order, so that gathering the workers' results restores the original order. A batch of B rows
gives each of P workers B // P rows and the first B % P one more. A worker is never handed 0 rows, on
which BatchNorm divides by zero and convolutions crash: it gets a copy of a row that counts for nothing.

File sharding: every worker reads its own files; one whose files are read up waits, with such a row,
for the others.

`Batch` carries how much a worker's rows count. Keras passes it to `strategy.run` unopened.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_strategy.pipelines import components, static_batch_size


class Batch(NamedTuple):
    """One worker's part of a global batch.

    Attributes:
      data: the worker's rows, or one row that counts for nothing when `rows` is 0.
      rows: int64 scalar, rows of `data` that count.
      total: int64 scalar, rows of the global batch.
    """

    data: Any
    rows: tf.Tensor
    total: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """Of the global batch's rows those that count here, float64 scalar."""
        return self.rows / self.total


def _is_sparse(x) -> bool:
    return isinstance(x, (tf.SparseTensor, tf.SparseTensorSpec))


def num_rows(element) -> tf.Tensor:
    """Rows of a batch: the first dimension of its first component."""
    return _rows_of(components(element)[0])


def _rows_of(component):
    if _is_sparse(component):
        return component.dense_shape[0]
    if isinstance(component, tf.RaggedTensor):
        return tf.cast(component.nrows(), tf.int64)
    if component.shape.rank is None:  # of tf.numpy_function; it may be a scalar
        return tf.reduce_prod(tf.shape(component, tf.int64)[:1])
    static = component.shape[0]
    return tf.shape(component, tf.int64)[0] if static is None else static


def checked_rows(element) -> tf.Tensor:
    """`num_rows`, of a batch of which each worker is to take some.

    Raises:
      tf.errors.InvalidArgumentError: a component has another number of rows.
    """
    first, *others = [_rows_of(component) for component in components(element)]
    checks = [
        tf.debugging.assert_equal(
            tf.cast(rows, tf.int64), tf.cast(first, tf.int64),
            "components of a batch have different numbers of rows, and each worker takes some rows of all: "
            "let them have one first dimension, or use strategy.distribute_datasets_from_function.",
        )
        for rows in others
        if not (isinstance(rows, int) and isinstance(first, int) and rows == first)
    ]  # fmt: skip
    with tf.control_dependencies(checks):
        return first if isinstance(first, int) else tf.identity(first)


def if_counted(rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """`rows`, or none of them where none counts: an optimizer may move a row whose gradient is zero."""
    return rows[: tf.where(counts, tf.shape(rows)[0], 0)]


def take_rows(element, start, count):
    """Rows [start, start + count) of every component of a batch."""

    def take(x):
        if not hasattr(x, "shape"):
            return x  # an optional component that is not given
        if _is_sparse(x):
            begin = tf.one_hot(0, x.shape.rank, on_value=tf.cast(start, tf.int64), dtype=tf.int64)
            size = tf.concat([[tf.cast(count, tf.int64)], x.dense_shape[1:]], axis=0)
            return tf.sparse.slice(x, begin, size)
        return x[start : start + count]

    return tf.nest.map_structure(take, element)


def check_batched(dataset: tf.data.Dataset) -> None:
    """Raises ValueError unless every component of `dataset` has a batch dimension."""
    for spec in components(dataset.element_spec):
        if spec.shape.rank == 0:
            raise ValueError(
                f"the dataset to distribute is not batched: one of its components has shape {spec.shape}. "
                "Call dataset.batch(global_batch_size) before handing it to the strategy."
            )


def too_few_rows(batch_size: int, num_workers: int) -> ValueError:
    """What to raise where a global batch cannot give every worker a row."""
    return ValueError(
        f"the global batch has {batch_size} rows for {num_workers} workers; every worker needs at "
        "least one. Raise the batch size given to dataset.batch()."
    )


def _share(total, num_workers: int, index: int):
    """(first row, number of rows) of worker `index`."""
    base, extra = total // num_workers, total % num_workers
    if isinstance(total, int):
        return index * base + min(index, extra), base + (index < extra)
    early = tf.cast(index < extra, total.dtype)
    return index * base + tf.minimum(tf.cast(index, total.dtype), extra), base + early


def shard_batches(
    dataset: tf.data.Dataset, num_workers: int, index: int, tagged: bool
) -> tf.data.Dataset:
    """Keeps worker `index`'s slice of every global batch.

    Args:
      dataset: global batches; the same, in the same order, on every worker.
      num_workers: P.
      index: this worker's rank.
      tagged: whether the consumer understands `Batch`. If not, global batches of fewer than P rows,
        which cannot give every worker a row, are dropped on all workers with a warning.
    """
    batch_size = static_batch_size(dataset)
    if batch_size is None and not tagged:
        dataset = dataset.filter(lambda *element: _enough_rows(element, num_workers))
    elif not tagged and batch_size < num_workers:
        raise too_few_rows(batch_size, num_workers)

    def keep(element):
        total = checked_rows(element)
        start, rows = _share(total, num_workers, index)
        if not tagged:
            return take_rows(element, start, rows)
        empty = rows == 0
        if isinstance(total, int):
            start, count = (0, 1) if empty else (start, rows)
        else:
            start, count = tf.where(empty, tf.zeros_like(start), start), tf.maximum(rows, 1)
        return Batch(take_rows(element, start, count), tf.cast(rows, tf.int64), tf.cast(total, tf.int64))

    return map_elements(dataset, keep)


def tag_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Tags this worker's own batches with their rows, then goes on for ever with rows of no account."""

    def tag(element):
        rows = tf.cast(num_rows(element), tf.int64)
        return Batch(element, rows, rows)

    def idle(element):
        zero = tf.zeros([], tf.int64)
        return Batch(take_rows(element, 0, 1), zero, zero)

    spare = map_elements(dataset.take(1), idle).cache().repeat()
    return map_elements(dataset, tag).concatenate(spare)


def map_elements(dataset: tf.data.Dataset, fn) -> tf.data.Dataset:
    """`dataset.map(fn)` with whole elements: tf.data would spread tuples, also those of one."""
    spread = type(dataset.element_spec) is tuple
    return dataset.map(
        tf.autograph.experimental.do_not_convert(lambda *e: fn(e if spread else e[0]))
    )


def _enough_rows(element, num_workers: int) -> tf.Tensor:
    total = num_rows(element)
    enough = total >= num_workers

    def warn():
        tf.print(
            "WARNING: dropped a last global batch of", total, "rows: fewer than the", num_workers,
            "workers. Pass drop_remainder=True to dataset.batch(), or use model.fit, which counts them.",
        )
        return False

    return tf.cond(enough, lambda: True, warn)
