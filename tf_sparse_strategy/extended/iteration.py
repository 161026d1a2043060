"""Distributed datasets: each worker iterates its part, and all end at the same step."""

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, input_lib

# A plain iterator over the dataset. The other kind, MultiDeviceIterator, crashes when it is dropped
# while its thread still prefetches (TensorFlow 2.20).
HOST_ITERATOR = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


class _Agreed:
    """Mixed into a type: carries how workers agree that data is left into tf.functions that take it.

    A function that was traced for one way must not be called with data of another.
    """

    def __init__(self, *args, ends=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.ends = ends

    def _serialize(self):
        return (*super()._serialize(), self.ends)

    def sanity_check_type(self, other):
        super().sanity_check_type(other)
        if self.ends != other.ends:
            raise ValueError(f"{self} and {other} end in different ways")

    def most_specific_common_supertype(self, others):
        return self._with_ends(super().most_specific_common_supertype(others))

    def _with_tensor_ranks_only(self):
        return self._with_ends(super()._with_tensor_ranks_only())

    def _without_tensor_names(self):
        return self._with_ends(super()._without_tensor_names())

    def _with_ends(self, spec):
        if spec is not None:
            spec.ends = self.ends
        return spec


class _IteratorSpec(_Agreed, input_lib.DistributedIteratorSpec):
    """Of a `DistributedIterator`."""

    value_type = property(lambda self: DistributedIterator)

    def _from_components(self, components):
        return DistributedIterator(
            input_workers=self._input_workers,
            components=components,
            element_spec=self._element_spec,
            strategy=self._strategy,
            cardinality=self._cardinality,
            options=self._options,
            ends=self.ends,
        )


class DistributedIterator(input_lib.DistributedIterator):
    """Yields this worker's batches; ends on all workers at the same step.

    Args:
      ends: None where the pipeline itself ends everywhere at once; "all" to end when any worker
        has no more; "rows" (tagged batches) to end when no worker has any row left.
    """

    def __init__(self, *args, ends=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._ends = ends

    @property
    def element_spec(self):
        return self._element_spec

    @property
    def _type_spec(self):
        return _IteratorSpec(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            self._cardinality,
            ends=self._ends,
        )

    def get_next(self, name=None):
        with distribute_lib.enter_or_assert_strategy(self._strategy):
            if distribute_lib.get_replica_context() is not None:
                raise ValueError(
                    "next(iterator) was called in a replica function; call it outside and pass the "
                    "batch: strategy.run(fn, args=(next(iterator),))."
                )
        if self._ends is None:
            return self._get_next_no_partial_batch_handling()
        optional, more, total = self._poll()
        return tf.cond(more, lambda: self._value(optional, total), self._end)

    def get_next_as_optional(self):
        optional, more, total = self._poll()
        return tf.cond(
            more,
            lambda: tf.experimental.Optional.from_value(self._value(optional, total)),
            lambda: tf.experimental.Optional.empty(self._element_spec),
        )

    def _poll(self):
        """(this worker's optional, whether the workers go on, rows of all where they agree by rows)."""
        [optional] = self._iterators[0].get_next_as_optional_list()
        collectives = self._strategy.extended.collectives
        if self._ends is None:
            return optional, optional.has_value(), None
        if self._ends == "all":
            return optional, _all_have_data(optional, collectives), None
        total = _total_rows(optional, collectives)
        return optional, total > 0, total

    def _value(self, optional, total):
        value = optional.get_value()
        if total is not None:
            value = value._replace(total=total)
        return input_lib._create_per_replica([value], self._strategy)

    def _end(self):
        """Raises OutOfRangeError; in a graph, when it runs."""
        nothing = tf.data.Dataset.from_tensors(0).take(0)
        with tf.control_dependencies([iter(nothing).get_next()]):
            return self._get_next_no_partial_batch_handling()


class _DatasetSpec(_Agreed, input_lib.DistributedDatasetsFromFunctionSpec):
    """Of a `DistributedDataset`."""

    value_type = property(lambda self: DistributedDataset)

    def _from_components(self, components):
        [dataset] = components
        return DistributedDataset(
            self._input_workers, self._strategy, dataset, self._options, self.ends, None
        )


class DistributedDataset(input_lib.DistributedDatasetsFromFunction):
    """This worker's part of a dataset."""

    def __init__(self, input_workers, strategy, dataset, options, ends, batches):
        input_context = strategy.extended._make_input_context()
        super().__init__(input_workers, strategy, [input_context], lambda _: dataset, options=options)
        self._ends = ends
        self._batches = batches  # of all workers alike, where their own numbers differ
        self.undivided = tf.data.UNKNOWN_CARDINALITY  # batches of what was shared out

    @property
    def element_spec(self):
        return self._element_spec

    @property
    def _type_spec(self):
        return _DatasetSpec(
            self._input_workers, self._element_spec, self._strategy, self._options, ends=self._ends
        )

    @property
    def cardinality(self):
        """The number of batches after which all end, or that it is unknown or endless; by it `fit` counts."""
        return super().cardinality if self._batches is None else self._batches

    @property
    def ends_with_the_data(self) -> bool:
        """Whether it is shared out so that nobody can tell after how many batches it ends."""
        return self._batches == tf.data.UNKNOWN_CARDINALITY

    def __iter__(self):
        plain = super().__iter__()
        iterator = DistributedIterator(
            input_workers=self._input_workers,
            iterators=plain._iterators,
            strategy=self._strategy,
            cardinality=self._cardinality,
            options=self._options,
            ends=self._ends,
        )
        iterator._element_spec = self._element_spec
        return iterator


def _all_have_data(optional: tf.experimental.Optional, collectives) -> tf.Tensor:
    """Whether every worker's `optional` has a value; says so when only some have. Collective."""
    workers = collectives.topology.num_workers
    with tf.device("CPU:0"):  # a GPU would first have to end the step before
        ready = collectives.all_reduce(tf.cast(optional.has_value(), tf.int32), purpose="input")

    def warn():
        tf.print(
            "WARNING: the epoch ends because only", ready, "of", workers, "workers have data left;",
            "theirs is not used. Use AutoShardPolicy.DATA, or model.fit, which counts every row.",
        )
        return tf.constant(False)

    some = tf.logical_and(ready > 0, ready < workers)
    return tf.cond(some, warn, lambda: ready == workers)


def _total_rows(optional: tf.experimental.Optional, collectives) -> tf.Tensor:
    """Rows of all workers' tagged batches (`input.Batch`); 0 when the epoch is over. Collective.

    Raises:
      tf.errors.InvalidArgumentError: a worker has not even a row of no account to go on with.
    """
    has_value = optional.has_value()
    rows = tf.cond(has_value, lambda: optional.get_value().rows, lambda: tf.zeros([], tf.int64))
    missing = tf.cast(tf.logical_not(has_value), tf.int64)
    with tf.device("CPU:0"):  # as above
        total, empty = tf.unstack(collectives.all_reduce(tf.stack([rows, missing]), purpose="input"))
    check = tf.debugging.Assert(
        tf.logical_or(total == 0, empty == 0),
        ["a worker's files hold no rows at all; use AutoShardPolicy.DATA or fewer workers"],
    )
    with tf.control_dependencies([check]):
        return tf.identity(total)
