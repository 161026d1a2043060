"""Decides, for all workers alike, how a dataset is shared out: by files, by rows, or not at all."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy import pipelines
from tf_sparse_strategy.collectives import Collectives

Policy = tf.data.experimental.AutoShardPolicy


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Shares datasets of global batches out over the workers of `collectives`.

    Args:
      collectives: of this worker.
      auto_shard: (dataset, number of shards, index) -> the dataset with its files shared out.
      batch_size: dataset -> its batch size, or -1 where that cannot be told.
    """

    collectives: Collectives
    auto_shard: Callable[[tf.data.Dataset, int, int], tf.data.Dataset]
    batch_size: Callable[[tf.data.Dataset], int]

    def share(
        self, dataset: tf.data.Dataset, consumer: str | None
    ) -> tuple[tf.data.Dataset, str | None]:
        """Returns (this worker's part, how workers must agree that data is left).

        Args:
          dataset: yields global batches.
          consumer: the Keras loop that will read it and understands `input.Batch`, or None.

        Returns:
          The agreement is None where all parts end together of themselves, "all" to end with the
          first worker that has no more, "rows" to go on until no worker has a row left.

        Raises:
          ValueError: not batched, fewer rows per batch than workers, or fewer files than workers under
            AutoShardPolicy.FILE.
        """
        input_pipeline.check_batched(dataset)
        workers = self.collectives.topology.num_workers
        if workers == 1:
            return dataset, None
        policy = self._policy(dataset, consumer)
        if policy == Policy.DATA:
            dataset = pipelines.in_order(dataset)
            static = pipelines.static_batch_size(dataset)
            tagged = consumer is not None and (static is None or static % workers > 0)
            rank = self.collectives.topology.rank
            return input_pipeline.shard_batches(dataset, workers, rank, tagged), None
        part = self._own_files(dataset, policy)
        if consumer is None:
            return part, "all"
        return input_pipeline.tag_batches(part), "rows"

    def _policy(self, dataset, consumer) -> Policy:
        asked = dataset.options().experimental_distribute.auto_shard_policy
        if consumer in ("predict", "predict_on_batch") and asked != Policy.OFF:
            return Policy.DATA  # the only one that keeps the order of the rows
        if asked in (Policy.DATA, Policy.OFF, Policy.HINT):
            return asked
        reads = pipelines.reads_files(dataset)
        reason = pipelines.reason_against_files(dataset) if reads else None
        if reason and asked == Policy.FILE:
            logging.warning(
                "auto_shard_policy=FILE is followed, although %s; workers see their own files alone.", reason
            )
        elif reason:
            logging.info("The dataset is shared out by rows, not by files: %s.", reason)
            reads = False
        enough = reads and self._has_a_file(dataset)
        everywhere = self.collectives.all_reduce(tf.constant(enough), op="min", purpose="has_a_file")
        if bool(everywhere):
            return Policy.FILE
        if asked == Policy.FILE:
            raise ValueError(
                "auto_shard_policy=FILE needs at least one input file with rows per worker; there are "
                f"{self.collectives.topology.num_workers} workers and some got none, or TensorFlow cannot "
                "share them out. Write more files, or use AutoShardPolicy.DATA."
            )
        if reads:
            logging.info(
                "The dataset is shared out by rows, not by files: a worker would have none, or TensorFlow "
                "cannot share them out (an error 'tf_auto_shard failed' says why, and does no harm)."
            )
        return Policy.DATA

    def _shard(self, dataset):
        topology, options = self.collectives.topology, tf.data.Options()
        if dataset.options().experimental_distribute.auto_shard_policy == Policy.AUTO:
            # Else TensorFlow gives each worker some batches where it cannot share out all of the files.
            options.experimental_distribute.auto_shard_policy = Policy.FILE
            dataset = dataset.with_options(options)
        return self.auto_shard(dataset, topology.num_workers, topology.rank)

    def _has_a_file(self, dataset) -> bool:
        """Whether this worker's files hold a row: reads one, and so fills a shuffle buffer once.

        TensorFlow reports too few files as InvalidArgumentError. An error of the user's own pipeline
        may look the same; sharding by rows then meets it again, and raises it.
        """
        try:
            return next(iter(self._shard(dataset)), None) is not None
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
            return False

    def _own_files(self, dataset, policy):
        """This worker's files (or, under OFF, all it was given) in batches of its share."""
        workers, rank = self.collectives.topology.num_workers, self.collectives.topology.rank
        part = dataset if policy == Policy.OFF else self._shard(dataset)
        size = self.batch_size(dataset)
        if size == -1:
            size = self._first_batch_size(part)
        if size < workers:
            raise input_pipeline.too_few_rows(size, workers)
        if size % workers == 0:
            return part.rebatch(size // workers)
        # Pieces that together are a batch: rows of two batches, padded to other lengths, are not joined.
        turns = ((rank + turn) % workers for turn in range(workers))
        return part.rebatch([size // workers + (turn < size % workers) for turn in turns])

    def _first_batch_size(self, part) -> int:
        """Rows of the largest first batch of any worker: a map after batch() hides the batch size."""
        first = next(iter(part), None)
        rows = 0 if first is None else int(input_pipeline.num_rows(first))
        return int(self.collectives.all_reduce(tf.constant(rows), op="max", purpose="batch_size"))
