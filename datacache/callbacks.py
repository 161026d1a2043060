"""Keras callbacks: resuming a run in the middle of an epoch, and what the cache did, in Keras's logs."""

import importlib
import os
import time
from collections.abc import Iterator
from importlib import util

import tensorflow as tf

from datacache import order
from datacache.cache import DataCache
from datacache.exchange import Exchange

# Of both Kerases: tf_keras asks its callbacks for methods that Keras 3's lack.
_KERASES = [importlib.import_module(name) for name in ("keras", "tf_keras") if util.find_spec(name)]


class _Callback(*(kind.callbacks.Callback for kind in _KERASES)):
    """Of each Keras that is installed."""


def restore_all(checkpoint: tf.train.Checkpoint, path: str | None, problem: str) -> None:
    """Restores a checkpoint whole, if there is one; all workers call, whatever they have seen.

    Args:
      checkpoint: what to restore.
      path: of the file, or None.
      problem: what it means, and what to do, where the file is of other objects.

    Raises:
      ValueError: it is.
    """
    try:
        status = checkpoint.restore(path)
        if path:
            status.assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(f"{problem} {error}") from error


def unseen(model) -> list[tf.Variable]:
    """What of a model of Keras 3 and its optimizer `tf.train.Checkpoint` does not see.

    What Dropout and the like draw from next; weights of layers in lists that are not trained (the others it
    finds by the optimizer); the state of optimizers within another one.
    """
    optimizer = model.optimizer
    seen = {id(node) for each in (model, optimizer) for node in tf.train.TrackableView(each).descendants()}
    of_optimizer = optimizer.variables if isinstance(optimizer.variables, list) else []  # else a legacy one's
    variables = {id(variable): variable for variable in (*model.variables, *of_optimizer)}
    own = [variable for variable in variables.values() if not ({id(variable), id(variable.value)} & seen)]
    return [variable.value for variable in own]


class Resume(_Callback):
    """Saves model, optimizer and position; a run that begins anew goes on where the last one was saved.

    The position is one number, the steps done: with the dataset's arguments it says which batches follow.
    With them resumed training equals an uninterrupted one bit for bit, where the model's operations repeat:
    Keras 3's Dropout does, tf_keras's and what draws from a global seed do not, nor do sums of more than two
    workers in several buckets (docs/communication.md).

    Args:
      directory: for checkpoints; the last two are kept.
      model: compiled, with its variables built. What is in the directory is restored at once.
      every: steps between saves; None (default): one per epoch.
      **also: what else a run goes on from, as `tf.train.Checkpoint` takes it: under a `SparseStrategy` with
        sparse communication `residual=strategy.residual`.

    Raises:
      ValueError: `every` is less than 1, the model is not built or not compiled, or the directory holds a
        checkpoint of another one; or, when training begins, the model's `steps_per_execution` does not divide
        the steps of an epoch (Keras 3).
      tf.errors.OpError: a checkpoint cannot be read or written.

    Example:
      >>> import tempfile
      >>> from datacache import DataCache, Samples
      >>> cache = DataCache(Samples(64, lambda i: i), lambda i: tf.cast([i, i], tf.float32), memory=0)
      >>> model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> resume = Resume(tempfile.mkdtemp(), model)
      >>> for span in resume.spans(epochs=2, steps_per_epoch=cache.steps_per_epoch(16)):
      ...     dataset = cache.dataset(16, augment=lambda x: (x / 64, x[:, :1]), start=span.start)
      ...     _ = model.fit(dataset, callbacks=[resume], verbose=0, **span.fit_arguments())
      >>> resume.step
      8
    """

    def __init__(self, directory: str | os.PathLike, model, every: int | None = None, **also):
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"every={every}: must be at least 1 step, or None for epochs.")
        if getattr(model, "optimizer", None) is None or not model.built:
            raise ValueError("Resume needs a model that is compiled and built: call model.build(...) first.")
        with model.distribute_strategy.scope():
            build = getattr(model.optimizer, "build", None) or model.optimizer._create_all_weights  # legacy
            build(model.trainable_variables)
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        kept = {"model": model, "optimizer": model.optimizer, "seeds": unseen(model)}
        checkpoint = tf.train.Checkpoint(step=self._step, **kept, **also)
        self._manager = tf.train.CheckpointManager(checkpoint, os.fspath(directory), max_to_keep=2)
        problem = (
            f"{os.fspath(directory)} holds a checkpoint of another model, optimizer, or of other "
            "arguments or an earlier version: name another directory."
        )
        restore_all(checkpoint, self._manager.latest_checkpoint, problem)
        self._every, self._saved, self._epoch_start = every, self.step, self.step

    @property
    def step(self) -> int:
        """Steps of the run that are done."""
        return int(self._step.numpy())

    def spans(self, epochs: int, steps_per_epoch: int) -> Iterator[order.Span]:
        """The calls of `fit` that finish a run of `epochs` epochs, those done included, from here on.

        After a call that a callback has stopped there are no more.
        """
        for span in order.spans(self.step, epochs, steps_per_epoch):
            yield span
            if self.model is not None and self.model.stop_training:
                return

    def on_train_begin(self, logs=None):
        steps = (self.params or {}).get("steps")
        of_call = self.model.steps_per_execution
        # tf_keras's is a variable, by which it makes the last call shorter.
        if steps and isinstance(of_call, int) and steps % of_call:
            raise ValueError(
                f"Resume: the model is compiled with steps_per_execution={of_call}, which does not divide "
                f"the {steps} steps of an epoch; Keras would make more of them. Choose one that does."
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        # `batch` is the last of several where the model is compiled with steps_per_execution.
        self._step.assign(self._epoch_start + batch + 1)
        if self._every and self.step - self._saved >= self._every:
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        if self.step != self._saved:
            self._save()

    def _save(self) -> None:
        self._manager.save(checkpoint_number=self.step)
        self._saved = self.step


# Of DataCache.stats(): counts of which an epoch's part is logged.
_COUNTED = (
    "memory_bytes",
    "encoded_bytes",
    "local_bytes",
    "original_bytes",
    "original_seconds",
    "stall_seconds",
)


class CacheMonitor(_Callback):
    """Adds to each epoch's logs where its samples came from; optionally TensorBoard scalars.

    `datacache_hit_rate` (share of samples found decoded in memory), `datacache_stored` (samples in memory),
    `datacache_<level>_bytes` of memory, encoded, local and original, `datacache_bytes_per_second` (all
    levels together, over the epoch's time), `datacache_original_seconds` (waiting for the central storage,
    all threads together), `datacache_stall_seconds` (waiting for batches) and `datacache_stall_share` of the
    epoch's time. Batches are loaded ahead, so that an epoch's first ones may be counted in the epoch before.

    Args:
      cache: whose numbers.
      log_dir: for TensorBoard; None (default) for none. Of several workers the first writes; all numbers,
        also those in the logs, are each worker's own.

    Example:
      >>> from datacache import DataCache, Samples
      >>> cache = DataCache(Samples(64, lambda i: i), lambda i: tf.cast([i, i], tf.float32), memory=0)
      >>> model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> dataset = cache.dataset(16, augment=lambda x: (x / 64, x[:, :1]), epochs=1)
      >>> logs = model.fit(dataset, callbacks=[CacheMonitor(cache)], verbose=0).history
      >>> logs["datacache_hit_rate"]     # nothing is kept with memory=0
      [0.0]
    """

    def __init__(self, cache: DataCache, log_dir: str | os.PathLike | None = None):
        super().__init__()
        self._cache, self._before, self._begin = cache, cache.stats(), time.monotonic()
        self._log_dir, self._writer = log_dir, None

    def on_train_begin(self, logs=None):
        writes = self._log_dir is not None and self.model.distribute_strategy.extended.should_save_summary
        if writes and self._writer is None:
            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))
        self._before, self._begin = self._cache.stats(), time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        now, seconds = self._cache.stats(), time.monotonic() - self._begin

        def counted(name: str) -> float:
            return now.get(name, 0) - self._before.get(name, 0)

        found = {f"datacache_{name}": counted(name) for name in _COUNTED if name in now}
        hits, misses = counted("memory_hits"), counted("memory_misses")
        loaded = sum(counted(name) for name in _COUNTED if name.endswith("_bytes"))
        found |= {
            "datacache_hit_rate": hits / max(hits + misses, 1),
            "datacache_stored": now["stored"],
            "datacache_bytes_per_second": loaded / seconds,
            "datacache_stall_share": counted("stall_seconds") / seconds,
        }
        self._before, self._begin = now, self._begin + seconds
        if logs is not None:
            logs.update(found)
        if self._writer:
            with self._writer.as_default(step=epoch):
                for name, value in found.items():
                    tf.summary.scalar(name, value)
            self._writer.flush()


class ExchangeCallback(_Callback):
    """Runs an `Exchange` beside each epoch; on one process of each node.

    Args:
      exchange: of this node.

    Raises:
      Exception: (at an epoch's end) whatever the transfer raised.

    Example:
      >>> from datacache import DataCache, Samples
      >>> cache = DataCache(Samples(64, lambda i: i), lambda i: tf.cast([i, i], tf.float32), memory=0)
      >>> plan = cache.order(16, shuffle="exchange")
      >>> alone = Exchange(cache, plan, node_of_worker=[0], node=0, all_to_all=lambda arrays: arrays)
      >>> callback = ExchangeCallback(alone)     # for fit(callbacks=[callback])
    """

    def __init__(self, exchange: Exchange):
        super().__init__()
        self._exchange = exchange

    def on_epoch_begin(self, epoch, logs=None):
        self._exchange.start(epoch + 1)

    def on_epoch_end(self, epoch, logs=None):
        self._exchange.finish()
