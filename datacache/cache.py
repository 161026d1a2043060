"""DataCache: a data set that is read once, decoded once, and then trained from memory."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import budget, order, statistics, warming
from datacache import memory as memory_level
from datacache.local import LocalCopies
from datacache.order import Order
from datacache.pipeline import READY, Loader, apply_augment, sample_spec, untuned
from datacache.source import ImageFolder, Samples, TFRecords
from datacache.version import of as version_of

MEMORY_DIR = "/dev/shm"  # where stores are, unless another directory is given
_FOREVER = (1 << 63) - 1
_WARM_BATCH = 64
_EXAMINED_AT_ONCE = 1 << 20  # samples, whose numbers take memory
_LOADED_AT_ONCE = 512 << 20  # bytes of batches


class DataCache:
    """Keeps a data set's files on the local disk and its decoded samples in shared memory.

    Every sample is decoded once per machine and then gathered from memory into batches, whatever the number
    of processes; a second run on the machine starts with what the first has left. Samples that do not fit
    are decoded in each epoch, always the same ones, since nothing is evicted: from copies on the local disk;
    without `local_dir` from their encoded bytes in memory, for which decoded ones make room.
    A source that changed, or another `version`, begins anew; a file counts as changed when its size or its
    modification time is another.

    With `local_dir` a file is read from the central storage once per machine. Every process of every run
    lists the source; without `local_dir`, the first one also reads all files of `TFRecords` to find their
    records, and leaves an index of them in memory.

    Cost: memory of N samples, each rounded up to 64 bytes and with a header of 64; one copy per sample and
    batch. Not for data sets whose decoding is cheaper than a copy, nor for samples of different shapes.

    Args:
      source: `TFRecords`, `ImageFolder` or `Samples`.
      decode: from what the source reads to a sample: a tensor, or a structure of tensors, each of a fixed
        shape and in the dtype to be kept (uint8 takes a quarter of float32). Random augmentation does not
        belong here but into `dataset`.
      local_dir: directory for copies of the source's files, on a local disk; None (default) for none.
      memory: limit of the store: "auto" (default) for none, bytes, or e.g. "20GB" (1 KB is 1024 bytes); 0
        for no store. It takes the least of this, the control group's and the machine's free memory, and the
        free space of `memory_dir`.
      version: change it when `decode` decodes differently. None (default): told from decode's code and what
        it refers to (version.py).
      memory_dir: a directory on tmpfs; default /dev/shm. The store stays there after the process; `tss cache`
        shows and deletes stores.
      nodes: M, machines among which the samples are divided (`shuffle` "local" or "exchange"): how many
        this one needs room for. Default 1.

    Raises:
      TypeError: `source` is no source, or `decode` no function.
      ValueError: `memory` or `nodes` is out of range; the source is empty; a sample cannot be stored; a
        directory is not ours; a `version` is needed.
      tf.errors.DataLossError: a file of `TFRecords` is none.

    Example:
      >>> import tempfile
      >>> from datacache import Samples
      >>> numbers = Samples(100, lambda i: i)
      >>> with tempfile.TemporaryDirectory() as directory:  # usually /dev/shm, the default
      ...     cache = DataCache(numbers, decode=lambda i: tf.cast(i, tf.float32), memory_dir=directory)
      ...     dataset = cache.dataset(batch_size=10, epochs=2)
      ...     print(sum(float(tf.reduce_sum(batch)) for batch in dataset))  # doctest: +ELLIPSIS
      datacache: ...
      9900.0

    Source: Shi et al., MLSys 2021, section 4.1.
    """

    def __init__(
        self,
        source,
        decode: Callable,
        local_dir: str | os.PathLike | None = None,
        memory: int | str = "auto",
        version: str | None = None,
        memory_dir: str = MEMORY_DIR,
        nodes: int = 1,
    ):
        if not isinstance(source, TFRecords | ImageFolder | Samples):
            raise TypeError(
                f"source={source!r}: must be a TFRecords, an ImageFolder or a Samples, e.g. "
                "ImageFolder('/mnt/nfs/images')."
            )
        if not callable(decode):
            raise TypeError(f"decode={decode!r}: must be a function of what the source reads.")
        budget.parse(memory)
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: must be at least 1, the number of machines.")
        self.source = source
        self.version = version_of(decode) if version is None else version
        self.local = LocalCopies(local_dir)
        source.open(self.local, memory_dir if budget.parse(memory) != 0 else None)
        order.require_samples(len(source))
        read = source.reader()
        self.spec = sample_spec(lambda sample: decode(*read(sample)))
        flat = tf.nest.flatten(self.spec)
        name = memory_level.identity(source.fingerprint, self.version, len(source), flat)
        about = {"source": source.title, "version": self.version}
        # Copies on a local disk are the encoded form already.
        encoded_sizes = source.encoded_sizes if self.local.root is None else None
        self.memory = memory_level.Memory(
            memory_dir, name, len(source), flat, memory, about, encoded_sizes, nodes
        )
        self._nodes = nodes
        kept = self.memory.kept  # datasets that hold the loader need not hold the cache

        def decode_sample(sample):
            return decode(*read(sample, kept))

        # From sample numbers [b] to samples, in a graph or eagerly.
        self.load = Loader(decode_sample, self.spec, self.memory, self.local)
        self._forecast_is_printed = False

    def __len__(self) -> int:
        return len(self.source)

    def order(self, batch_size: int, seed=0, shuffle="local", fraction=0.1, drop_remainder=False):
        """The `order.Order` of a dataset with these arguments, which are those of `dataset`.

        Raises:
          TypeError: `batch_size` or `seed` is no whole number, or `fraction` no number.
          ValueError: one is out of range, or `drop_remainder` would leave no batch.
        """
        return order.check(
            order.Order(
                len(self),
                order.whole("batch_size", batch_size),
                order.whole("seed", seed),
                shuffle,
                float(fraction),
                bool(drop_remainder),
            )
        )

    def steps_per_epoch(self, batch_size: int, drop_remainder: bool = False) -> int:
        """Batches in which each sample comes once: what Keras's `fit` is to be told.

        Args:
          batch_size, drop_remainder: as for `dataset`.

        Raises:
          TypeError, ValueError: as `order`.
        """
        return self.order(batch_size, drop_remainder=drop_remainder).steps_per_epoch

    def dataset(
        self,
        batch_size: int,
        augment: Callable | None = None,
        seed: int = 0,
        shuffle: str = "local",
        input_context: tf.distribute.InputContext | None = None,
        start: int = 0,
        epochs: int | None = None,
        fraction: float = 0.1,
        drop_remainder: bool = False,
    ) -> tf.data.Dataset:
        """The batches of a run, epoch after epoch, each sample once per epoch.

        First checks what is in memory of the samples of the first epoch, or of what `start` leaves of it.
        That reads this memory once, which the epoch would otherwise do.

        Which samples make up the global batch of a step depends on `batch_size`, `seed`, `shuffle`,
        `fraction` and `drop_remainder` alone, not on the number of workers; so does what `augment` draws.
        Worker p of P gets rows p, p + P, ... of it. With one worker the dataset's iterators
        can be saved (`tf.train.Checkpoint`).

        Args:
          batch_size: of the *global* batch.
          augment: from the components of a batch, [b, ...] each, to what the model gets. If it has a
            parameter `seed` it is given int64 [b, 2], a seed per sample and epoch for `tf.random.stateless_*`
            and `tf.image.stateless_*`; other random operations do not repeat when a run is resumed. None
            (default): the batch as it is.
          seed: of the order and of `augment`; 32 bits, the same on all workers; default 0.
          shuffle: "local" (default): each worker sees the same 1/P of the samples in each epoch, in another
            order, so that a node needs its share alone. "exchange": `fraction` of the samples change places
            between epochs. "global": each worker sees any sample in any epoch, for sets that fit a node.
          input_context: of `distribute_datasets_from_function`; None (default) for one worker.
          start: steps of the run that are done already; none is done again. See also callbacks.Resume.
            Default 0.
          epochs: of the run, those before `start` included; None (default): no end, for
            `fit(steps_per_epoch=cache.steps_per_epoch(...))`. A dataset that ends begins, iterated again,
            with the same order and seeds: `fit` needs one that does not.
          fraction: see `shuffle`; 0 < fraction <= 1, default 0.1.
          drop_remainder: whether each epoch ends with its last whole batch; default False.

        Raises:
          TypeError: `batch_size`, `seed`, `start` or `epochs` is no whole number, or `fraction` no number.
          ValueError: an argument makes no sense, workers have several replicas each, or an epoch's last
            batch has fewer rows than workers.
          tf.errors.OpError: (when iterated) a sample cannot be read or decoded.
        """
        context = input_context or tf.distribute.InputContext()
        self._print_forecast(context.input_pipeline_id == 0)
        start = order.whole("start", start)
        if start < 0:
            raise ValueError(f"start={start}: must be at least 0, the steps that are done already.")
        plan = self.order(batch_size, seed, shuffle, fraction, drop_remainder)
        batch_size = plan.batch_size
        rows, workers = _rows(context, batch_size), context.num_input_pipelines
        rest = len(self) % batch_size
        if 0 < rest < workers and not drop_remainder:
            raise ValueError(
                f"batch_size={batch_size}: the last of an epoch's {len(self)} samples make a batch of "
                f"{rest} rows, too few for {workers} workers; pass drop_remainder=True or another batch_size."
            )
        end = _FOREVER if epochs is None else order.whole("epochs", epochs) * plan.steps_per_epoch
        if end < 0:
            raise ValueError(f"epochs={epochs}: must be at least 0, or None for no end.")
        rest_of_epoch = range(start, min(end, (start // plan.steps_per_epoch + 1) * plan.steps_per_epoch))
        self._examine(rest_of_epoch, plan, rows)
        load = self.load

        def load_batch(step):
            ids, epoch = order.batch_ids(step, plan, rows)
            if drop_remainder or not rest:
                ids = tf.ensure_shape(ids, [len(rows)])
            batch = load(ids)
            if augment is None:
                return batch
            return apply_augment(augment, batch, order.augment_seeds(ids, epoch, plan))

        steps = tf.data.Dataset.range(start, end)
        if epochs is None:
            steps = steps.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        # Finished batches wait where the training is slower, as many as are loaded at a time.
        sample_bytes = sum(x.shape.num_elements() * x.dtype.size for x in tf.nest.flatten(self.spec))
        at_once = min(len(os.sched_getaffinity(0)), _LOADED_AT_ONCE // max(len(rows) * sample_bytes, 1))
        at_once = max(at_once, READY)
        batches = steps.map(load_batch, at_once, deterministic=True).prefetch(READY)
        dataset = untuned(native.timed(batches, self.memory.name))
        dataset.is_prefetched = True  # another prefetch behind it would wait in the training's stead
        # What all workers must have alike: numbers stand for samples by the order of files.
        dataset.alike = {**plan._asdict(), "start": start, "files": self.source.contents[:16]}
        dataset.is_share = workers > 1
        return dataset

    def _examine(self, steps: range, plan: Order, rows: range) -> None:
        """Checks and maps what is in memory of the samples of some steps of one epoch."""
        if self.memory.path is None or native.store_stats(self.memory.path).stored == 0:
            return
        at_once = max(1, _EXAMINED_AT_ONCE // len(rows))
        with tf.init_scope(), tf.device("CPU:0"):
            for begin in range(0, len(steps), at_once):
                ids = order.ids_of(steps[begin : begin + at_once], plan, rows)
                native.examine(self.memory.path, ids)

    def warm(
        self,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: str = "local",
        input_context: tf.distribute.InputContext | None = None,
        progress: bool = True,
    ) -> None:
        """Reads and decodes now, with a progress bar, what is not in memory yet and has room there.

        Without arguments, all samples, in each process that calls it: let one of a machine do so. With
        those of `dataset`, the samples of its first epoch: with "local" those of every epoch. Each worker of
        a machine then reads its part.

        Args:
          batch_size, seed, shuffle, input_context: as for `dataset`.
          progress: whether to show the bar (default); of several workers the first shows its own.

        Raises:
          ValueError: `batch_size` is missing although the machine has room for its part alone (`nodes`); a
            sample cannot be read or decoded, which the message names; or as `order`.
          TypeError: as `order`.
        """
        if batch_size is None and self._nodes > 1:
            raise ValueError(
                f"warm() without batch_size, but nodes={self._nodes}: which part of the samples this machine "
                "needs depends on the dataset; pass its batch_size, seed, shuffle and input_context."
            )
        context = input_context or tf.distribute.InputContext()
        first = context.input_pipeline_id == 0
        self._print_forecast(first)
        if self.memory.path is None:
            return
        if batch_size is None:
            todo = len(self)
            ids = tf.data.Dataset.range(todo).batch(_WARM_BATCH)
        else:
            plan = self.order(batch_size, seed, shuffle)
            rows = _rows(context, plan.batch_size)
            todo = sum(len(range(row, len(self), plan.batch_size)) for row in rows)
            steps = tf.data.Dataset.range(plan.steps_per_epoch)
            ids = steps.map(lambda step: order.batch_ids(step, plan, rows)[0])
        warming.fill(self, ids, todo, progress and first)

    def _print_forecast(self, is_first: bool) -> None:
        """One process prints once what will fit into memory, unless all is there already."""
        if self._forecast_is_printed or not is_first:
            return
        self._forecast_is_printed = True
        if self.memory.path and native.store_stats(self.memory.path).stored < self.memory.share:
            print("datacache:", self.memory.forecast(), flush=True)

    def stats(self) -> dict[str, float]:
        """What this process took from where since it began, and what the store holds, as in statistics.py.

        Raises:
          tf.errors.FailedPreconditionError: the store's file has been replaced by one that is none.
        """
        return statistics.of(self.memory)

    def sample(self, number: int) -> Any:
        """Sample `number`, 0 to len - 1, e.g. to look at; read and decoded if it is not in memory.

        Raises:
          tf.errors.OpError: it cannot be read or decoded.
        """
        batch = self.load(tf.constant([number], tf.int64))
        return tf.nest.map_structure(lambda rows: rows[0], batch)


def _rows(context: tf.distribute.InputContext, batch_size: int) -> range:
    """The rows of a global batch that a worker owns.

    Raises:
      ValueError: the worker has several replicas, or there are fewer rows than workers.
    """
    workers = context.num_input_pipelines
    if context.num_replicas_in_sync not in (1, workers):  # 1 where the user has made it, and named none
        raise ValueError(
            f"input_context has {context.num_replicas_in_sync} replicas on {workers} workers: replicas "
            "of one worker would get batches of different steps; start one worker per replica."
        )
    return order.rows_of(context.input_pipeline_id, workers, batch_size)
