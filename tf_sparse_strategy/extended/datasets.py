"""Hooks for datasets: which part of one a worker gets."""

import tensorflow as tf
from absl import logging
from tensorflow.python.distribute import distribute_lib, distribute_utils

from tf_sparse_strategy import agreement, keras_callers, pipelines
from tf_sparse_strategy.extended.iteration import HOST_ITERATOR, DistributedDataset
from tf_sparse_strategy.scheduling.look_ahead import look_ahead


class Datasets:
    """`StrategyExtended`'s hooks for datasets."""

    def _make_input_context(self):
        return distribute_lib.InputContext(self._size, self._rank, self._size)

    def _experimental_distribute_dataset(self, dataset, options):
        _refuse_per_replica(options)
        self._refuse_share(dataset)
        self._require_alike(dataset, of_shares=_is_own(dataset))
        consumer = keras_callers.consumer()
        part, ends = self._sharding.share(dataset, consumer)
        if self.delayed is not None and consumer == "fit":
            part = look_ahead(part)
        distributed = self._distributed(part, ends)
        if ends == "rows":
            distributed.undivided = self._agreed(dataset.cardinality())
            if distributed.undivided > 0 and _is_own(dataset):  # whose batches are cut, each into P
                most = self.collectives.all_reduce(dataset.cardinality(), op="max", purpose="batches")
                distributed.undivided = int(most) * self._size
        return distributed

    def _distribute_datasets_from_function(self, dataset_fn, options):
        _refuse_per_replica(options)
        dataset = dataset_fn(self._make_input_context())
        self._require_alike(dataset, of_shares=True)
        self._warn_of_wholes(dataset)
        ends = None if self._size == 1 else "all"
        return self._distributed(dataset, ends)

    def _refuse_share(self, dataset):
        if not _is_own(dataset) and any(stage.is_share for stage in _caches(dataset)):
            raise ValueError(
                "The dataset is this worker's share of a DataCache's batches already, of which it would "
                "get but a share again. Hand it on by `strategy.distribute_datasets_from_function(lambda "
                "context: cache.dataset(batch_size, input_context=context))`, or leave input_context out."
            )

    def _warn_of_wholes(self, dataset):
        """Collective. Caches of other files on each worker are its own."""
        if self._size == 1:
            return
        wholes = [stage.alike for stage in _caches(dataset) if not stage.is_share]
        first, *others = agreement.gather([] if pipelines.shards(dataset) else wholes, self.collectives)
        if first and all(other == first for other in others) and self._rank == 0:
            logging.warning(
                "Each worker reads every batch of the DataCache whole, and each sample is trained %d times "
                "in an epoch: hand on the function's argument, `cache.dataset(..., input_context=context)`.",
                self._size,
            )

    def _require_alike(self, dataset, of_shares):
        """What a DataCache is made of, whose samples go by numbers; but not of one that is a worker's own."""
        for stage in _caches(dataset):
            if stage.is_share or not of_shares:
                remedy = "DataCache: give all workers the same arguments, and a source of the same files."
                agreement.require_same(stage.alike, self.collectives, remedy)

    def _distributed(self, dataset, ends):
        batches = None if ends is None else tf.data.UNKNOWN_CARDINALITY
        if ends == "all":
            batches = self._agreed(dataset.cardinality())
            if batches == tf.data.INFINITE_CARDINALITY:
                ends = batches = None
        if not getattr(dataset, "is_prefetched", False):  # as DataCache's are
            dataset = dataset.prefetch(tf.data.AUTOTUNE)
        return DistributedDataset(
            input_workers=self._input_workers_with_options(HOST_ITERATOR),
            strategy=self._container_strategy(),
            dataset=pipelines.without_tuning(dataset),
            options=HOST_ITERATOR,
            ends=ends,
            batches=batches,
        )

    def _agreed(self, cardinality) -> int:
        """The least of all workers' numbers of batches; unknown where one is."""
        own = tf.where(cardinality == tf.data.INFINITE_CARDINALITY, tf.int64.max, cardinality)
        least = int(self.collectives.all_reduce(own, op="min", purpose="batches"))
        return tf.data.INFINITE_CARDINALITY if least == tf.int64.max else least

    def _experimental_distribute_values_from_function(self, value_fn):
        value = value_fn(distribute_lib.ValueContext(self._rank, self._size))
        return distribute_utils.regroup([value], always_wrap=True)

    def _make_dataset_iterator(self, dataset):
        raise _v1_error("make_dataset_iterator")

    def _make_input_fn_iterator(self, input_fn, replication_mode=None):
        raise _v1_error("make_input_fn_iterator")

    def _experimental_make_numpy_dataset(self, numpy_input, session):
        raise _v1_error("experimental_make_numpy_dataset")


def _caches(dataset):
    """What DataCaches have given, each with `alike` and `is_share`."""
    return (stage for stage in pipelines.stages(dataset) if hasattr(stage, "alike"))


def _is_own(dataset) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF


def _v1_error(method: str) -> NotImplementedError:
    return NotImplementedError(
        f"{method} belongs to TensorFlow 1; use strategy.experimental_distribute_dataset(dataset)."
    )


def _refuse_per_replica(options):
    if options and options.experimental_replication_mode == (
        tf.distribute.InputReplicationMode.PER_REPLICA
    ):
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA is meaningless with one replica per process; leave "
            "experimental_replication_mode at PER_WORKER."
        )
