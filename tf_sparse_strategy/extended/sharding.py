"""Decides, for all workers alike, how a dataset is shared out: by files, by rows, or not at all."""

import tensorflow as tf
from absl import logging
from tensorflow.python.data.experimental.ops import distribute as data_distribute
from tensorflow.python.distribute import input_ops

from tf_sparse_strategy import agreement, pipelines
from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy.collectives import Collectives

Policy = tf.data.experimental.AutoShardPolicy


class Sharding:
    """Shares datasets of global batches out over the workers of `collectives`."""

    def __init__(self, collectives: Collectives):
        self.collectives = collectives
        self._rank, self._workers = collectives.topology.rank, collectives.topology.num_workers
        self._told: set[str] = set()

    def share(
        self, dataset: tf.data.Dataset, consumer: str | None
    ) -> tuple[tf.data.Dataset, str | None]:
        """Returns (this worker's part, with what all parts end).

        Args:
          dataset: yields global batches.
          consumer: the Keras loop that will read it and understands `input.Batch`, or None.

        Returns:
          The latter is None where all parts end together of themselves, "all" to end with the first worker
          that has no more, "rows" to go on until no worker has a row left.

        Raises:
          ValueError: not batched, fewer rows per batch than workers, or fewer files than workers under
            AutoShardPolicy.FILE.
        """
        input_pipeline.check_batched(dataset)
        if self._workers == 1:
            return dataset, None
        policy = self._policy(dataset, consumer)
        in_each_step = consumer is not None and consumer.endswith("_on_batch")
        if policy != Policy.OFF and not in_each_step:
            self._warn_of_own_parts(dataset, policy)
        if policy == Policy.DATA:
            dataset = pipelines.in_order(dataset)
            static = pipelines.static_batch_size(dataset)
            tagged = consumer is not None and (static is None or static % self._workers > 0)
            if consumer is None:
                self._warn_of_unlike_shares(dataset)
            return input_pipeline.shard_batches(dataset, self._workers, self._rank, tagged), None
        part = self._own_files(dataset, policy)
        if consumer is None:
            return part, "all"
        return input_pipeline.tag_batches(part), "rows"

    def _warn_of_own_parts(self, dataset, policy):
        """Where workers read what they share out in orders, or parts, of their own. Collective."""
        by_rows = policy == Policy.DATA
        if by_rows and pipelines.has_unseeded_shuffle(dataset):
            self._warn(
                "Shuffled data: a shuffle without a seed was made before the strategy, and each worker has "
                "an order of its own: rows will be missed and repeated. Make the strategy first, or give "
                "shuffle a seed."
            )
        remedy = (
            "Rows will be missed and repeated, as each takes its part of what it alone reads (not where only "
            "names differ, of copies of the same rows). Before a dataset is made, seed TensorFlow, and draw "
            "its random numbers eagerly, on all workers alike or on none; leave out `shard` and "
            "`[rank::size]`, since the strategy gives each worker its part; sort names of files, which "
            "`glob` and `os.listdir` give in any order."
        )
        strings = pipelines.strings(dataset)
        facts = {"shard": pipelines.shards(dataset), "strings, as names of files are": strings}
        if by_rows:
            facts["seeds of shuffles"] = pipelines.orders(dataset)
        if text := agreement.difference(facts, self.collectives, remedy):
            self._warn(f"Data of a worker's own: {text}")

    def _warn_of_unlike_shares(self, dataset):
        """Which only Keras's own loops weigh."""
        size = int(data_distribute.compute_batch_size(dataset))  # -1 where it cannot be told
        if size > 0 and size % self._workers > 0:
            self._warn(
                f"A dataset that you distribute has batches of {size} rows, which {self._workers} workers "
                "cannot share alike: a mean over each one's rows gives a row more weight where they are "
                "fewer. Hand `fit` the dataset itself; in a loop divide sums by the rows of all."
            )

    def _warn(self, text):
        """Once, by the first worker: all find the same."""
        if self._rank == 0 and text not in self._told:
            self._told.add(text)
            logging.warning("%s", text)

    def _policy(self, dataset, consumer) -> Policy:
        asked = dataset.options().experimental_distribute.auto_shard_policy
        if consumer in ("predict", "predict_on_batch") and asked != Policy.OFF:
            return Policy.DATA  # the only one that keeps the order of the rows
        if asked in (Policy.DATA, Policy.OFF, Policy.HINT):
            return asked
        reads = pipelines.reads_files(dataset)
        reason = pipelines.reason_against_files(dataset) if reads else None
        if reason and asked == Policy.FILE:
            self._warn(
                f"auto_shard_policy=FILE is followed, although {reason}; workers see their own files alone, "
                "or what was cached before."
            )
        elif reason:
            logging.info("The dataset is shared out by rows, not by files: %s.", reason)
            reads = False
            if reason == pipelines.CACHED:
                self._warn(
                    f"{reason}: so each worker reads and caches all. DataCache keeps one copy on a machine. "
                    "With a file for each worker, AutoShardPolicy.FILE gives it a part, if nobody else reads "
                    "this dataset."
                )
        if self._all_have_rows(dataset if reads else None, asked == Policy.FILE):
            return Policy.FILE
        if asked == Policy.FILE:
            raise ValueError(
                "auto_shard_policy=FILE needs at least one input file with rows per worker; there are "
                f"{self._workers} workers and some got none, or TensorFlow cannot "
                "share them out. Write more files, or use AutoShardPolicy.DATA."
            )
        if reads:
            logging.info(
                "The dataset is shared out by rows, not by files: a worker would have none, or TensorFlow "
                "cannot share them out (an error 'tf_auto_shard failed' says why, and does no harm)."
            )
        return Policy.DATA

    def _shard(self, dataset):
        options = tf.data.Options()
        if dataset.options().experimental_distribute.auto_shard_policy == Policy.AUTO:
            # Else TensorFlow gives each worker some batches where it cannot share out all of the files.
            options.experimental_distribute.auto_shard_policy = Policy.FILE
            dataset = dataset.with_options(options)
        return input_ops.auto_shard_dataset(dataset, self._workers, self._rank, self._workers)

    def _all_have_rows(self, dataset, a_batch_is_enough: bool) -> bool:
        """Whether all workers' files hold a row, of each reader, and make a batch. Collective.

        Reading moves a shuffle on to its next order, and an endless `repeat` of nothing never returns. So
        readers come first, which do not shuffle what they read; the whole, without `repeat`, only where
        all workers' hold rows.

        Args:
          dataset: None where this worker's reads no files: then not all do.
          a_batch_is_enough: whether readers are not asked.
        """

        def all_hold(parts) -> bool:
            here = [self._holds_a_row(part, dataset) for part in parts]  # of all: none goes on alone
            found = tf.constant(bool(here) and all(here))
            return bool(self.collectives.all_reduce(found, op="min", purpose="has_a_file"))

        if dataset is None:
            return all_hold([])
        readers_hold = a_batch_is_enough or all_hold(pipelines.readers(dataset))
        return readers_hold and all_hold([pipelines.before_repeating(dataset)])

    def _holds_a_row(self, part, dataset) -> bool:
        """Whether this worker's share of a part of a dataset does, which can be shared out.

        TensorFlow reports too few files as InvalidArgumentError. An error of the user's own pipeline
        may look the same; sharding by rows then meets it again, and raises it.
        """
        try:
            self._shard(dataset)
            return next(iter(pipelines.without_tuning(self._shard(part))), None) is not None
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
            return False

    def _own_files(self, dataset, policy):
        """This worker's files (or, under OFF, all it was given) in batches of its share."""
        workers = self._workers
        part = dataset if policy == Policy.OFF else self._shard(dataset)
        size = int(data_distribute.compute_batch_size(dataset))
        if size == -1:  # it cannot be told
            size = self._first_batch_size(part)
        if size < workers:
            raise input_pipeline.too_few_rows(size, workers)
        if size % workers == 0:
            return part.rebatch(size // workers)
        # Pieces that together are a batch: rows of two batches, padded to other lengths, are not joined.
        turns = ((self._rank + turn) % workers for turn in range(workers))
        return part.rebatch([size // workers + (turn < size % workers) for turn in turns])

    def _first_batch_size(self, part) -> int:
        """Rows of the largest first batch of any worker: a map after batch() hides the batch size."""
        first = next(iter(pipelines.without_tuning(part)), None)
        rows = 0 if first is None else int(input_pipeline.num_rows(first))
        return int(self.collectives.all_reduce(tf.constant(rows), op="max", purpose="batch_size"))
