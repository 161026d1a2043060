"""Saving and loading when several workers run the same script.

What a user may rely on, with more than one worker, for what was made under `strategy.scope()`:

* Every worker may call a save, as in a plain script; rank 0, the chief, alone writes. Saves of
  Keras (`model.save`, `save_weights`, `export`) communicate with nobody: `if rank == 0:` around
  them works too, unless there are sharded tables, or slots of `ShardedUpdate`, for whose parts the
  chief asks. State that differs between workers (metrics, other ON_READ variables) is the chief's.
* `tf.train.Checkpoint`, `CheckpointManager` and `tf.saved_model.save` store ON_READ variables
  reduced over the workers, `strategy.residual` and sharded tables gathered from them. When there are any, all
  workers must call; else the chief's call suffices. The other workers write into a private temporary
  directory that is deleted at once;
  they return the chief's path and keep `checkpoints`, `latest_checkpoint` and `save_counter` as the
  chief does. Write callbacks of `tf.train.CheckpointOptions` run on the chief.
* Loading (`load_weights`; `load_model` and `tf.saved_model.load` under the scope; `Checkpoint.restore`
  and `read`, `CheckpointManager.restore_or_initialize`, the start of `BackupAndRestore`) is for all
  workers together. It waits until all have come, so what was saved before is there; loads what rank 0
  names; and raises on all workers when it fails on one, above all when a disk is not shared and
  the file is missing, or another one, on some machine.
* A file of one piece (.keras, .h5) appears whole or not at all.
* Loading outside the scope (`tf.saved_model.load`, `keras.models.load_model`) waits for nobody, and
  Keras's is refused where the chief may still be writing. A checkpoint that holds nothing of the
  strategy's is not touched.
* A saved file knows nothing of the strategy: one process loads it, or another number of workers.

Keras's part is in keras_saving.py, that of its callbacks in keras_file_callbacks.py and keras_backups.py.
With one worker this is the original code.
"""

import contextlib
import copy
import hashlib
import importlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import agreement
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.checkpoints import PartsInTurn
from tf_sparse_strategy.hooking import ours, wrap

_MISSING = -1
_Path = str | os.PathLike


def install() -> None:
    """Installs the hooks on TensorFlow's own saving. Idempotent."""
    wrap(tf.train.Checkpoint, "_maybe_create_save_counter", _create_save_counter)
    wrap(tf.train.Checkpoint, "_async_checkpointer", _refuse_async)
    wrap(tf.train.Checkpoint, "_write", _write_checkpoint)
    wrap(tf.train.Checkpoint, "read", _read_checkpoint)  # by which `restore` reads, too
    wrap(tf.train.CheckpointManager, "save", _save_managed)
    wrap(tf.train.CheckpointManager, "restore_or_initialize", _restore_latest)
    wrap(tf.distribute.experimental.PreemptionCheckpointHandler, "__init__", _refuse_handler)
    importlib.import_module("tensorflow.saved_model")  # or its first import, by Keras, would make it anew
    for api in (tf.saved_model, tf.compat.v2.saved_model):  # tf_keras takes the latter
        wrap(api, "save", _save_model)
        wrap(api, "load", _load_model)


# ---- whose is it ---------------------------------------------------------------------------------


def is_chief(extended: Any) -> bool:
    """Whether this worker is the one that writes."""
    return extended.collectives.topology.rank == 0


def _owner(root) -> Any:
    return _owner_of(_nodes(root))


def _owner_of(nodes) -> Any:
    """`ours` of the first of these objects that a strategy of ours made."""
    for node in nodes:
        made_it = getattr(node, "distribute_strategy", None)
        if made_it is None:  # perhaps a variable of Keras 3
            made_it = getattr(getattr(node, "value", None), "distribute_strategy", None)
        if (extended := ours(made_it)) is not None:
            return extended
    return None


def _nodes(root) -> list:
    """All that `root` tracks."""
    return tf.train.TrackableView(root).descendants()


# ---- loading -------------------------------------------------------------------------------------


def load_together(extended: Any, path: _Path | None, load: Callable[[str | None], Any]) -> Any:
    """Calls `load(path)` on all workers, once all have come, with rank 0's path.

    Args:
      extended: the strategy's extended object.
      path: a file, a directory, a checkpoint's prefix, or None.
      load: what loads it.

    Returns:
      What `load` returns.

    Raises:
      FileNotFoundError: what rank 0 finds at its path is missing, or differs, on some worker.
      RuntimeError: loading failed on another worker, so that the workers' states now differ. What
        `load` raises here is raised as it is.
    """
    path = _from_rank_0(extended, None if path is None else os.fspath(path))
    require_same(extended, path)
    with agreement.together(extended.collectives):
        return load(path)


def _from_rank_0(extended, path: str | None) -> str | None:
    return agreement.gather(path, extended.collectives)[0]


def require_same(extended: Any, path: str | None) -> None:
    """Raises FileNotFoundError if workers find different files at `path`; none anywhere is the same."""
    if extended.collectives.topology.num_workers == 1:
        return
    with agreement.together(extended.collectives):  # a file that cannot be read fails on all
        own = _fingerprint(path)
    found = agreement.gather(own, extended.collectives)
    if len(set(found)) == 1:
        return  # missing everywhere, too: a first run has no backup yet
    missing = _MISSING in found
    wrong = [str(r) for r, file in enumerate(found) if (file == _MISSING if missing else file != found[0])]
    problem = "is missing" if missing else "is not the same as on worker 0"
    raise FileNotFoundError(
        f"{path!r} {problem} on worker(s) {', '.join(wrong)} of {len(found)}. All workers load the file "
        "that worker 0 saved: save it on a disk that all machines share, or copy it to the same path on each."
    )


def _fingerprint(path: str | None) -> int:
    """Tells contents apart; a checkpoint by its index, which holds the tensors' checksums."""
    if path is None:
        return 0
    within = [os.path.join("variables", "variables.index"), "model.weights.h5"]  # of directories
    candidates = [path, path + ".index", *(os.path.join(path, name) for name in within)]
    try:
        present = [file for file in candidates if tf.io.gfile.exists(file)]
    except tf.errors.UnimplementedError:
        return 0  # no file system of TensorFlow's, e.g. hf://, which is the same for all
    files = [file for file in present if not tf.io.gfile.isdir(file)]
    if not files:
        return 1 if present else _MISSING
    digest = hashlib.blake2b(digest_size=7)
    for file in (files[0], *_shards(files[0])):
        if not tf.io.gfile.exists(file):
            return _MISSING
        with tf.io.gfile.GFile(file, "rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                digest.update(chunk)
    return int.from_bytes(digest.digest(), "big")


def _shards(file: str) -> list[str]:
    """Those that Keras has written the weights to where `file` tells of several (`max_shard_size`)."""
    if not file.endswith(".weights.json"):
        return []
    with tf.io.gfile.GFile(file) as stream:
        told = json.load(stream).get("weight_map", {}).values()
    names = {name for each in told for name in ([each] if isinstance(each, str) else each)}
    return [os.path.join(os.path.dirname(file), name) for name in sorted(names)]


def _read_checkpoint(original, checkpoint, save_path, options=None):
    extended = _owner(checkpoint)
    if extended is None or not tf.executing_eagerly():
        return original(checkpoint, save_path, options)
    extended.gradients.memory.forget_gone()  # or what was left would go to models that are no more
    return load_together(extended, save_path, lambda path: original(checkpoint, path, options))


def _restore_latest(original, manager):
    extended = _owner(manager.checkpoint)
    if extended is not None:
        # A worker that looked while the chief was still writing knows of none, or of an older one.
        manager._latest_checkpoint = _from_rank_0(extended, manager.latest_checkpoint)
    return original(manager)


# ---- saving --------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(path: _Path) -> Iterator[_Path]:
    """Yields where to write a single file that takes its place at `path` once it is complete.

    Anything but a local .keras, .h5 or .hdf5 file is written in place.
    """
    target = os.path.realpath(path)
    if (
        "://" in str(path)
        or not target.endswith((".keras", ".h5", ".hdf5"))
        or os.path.isdir(target)
    ):
        yield path
        return
    partial = os.path.join(os.path.dirname(target), ".partial-" + os.path.basename(target))
    try:
        yield partial
        os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def _create_save_counter(original, checkpoint):
    extended = ours(tf.distribute.get_strategy())
    with contextlib.nullcontext() if extended is None else extended.alone():
        return original(checkpoint)  # it starts at 0 everywhere: no need to ask the others


def _refuse_async(original, checkpoint):
    if _owner(checkpoint) is not None:
        raise NotImplementedError(
            "experimental_enable_async_checkpoint saves from a thread, which cannot reduce "
            "variables over the workers in step with training. Leave it out of "
            "tf.train.CheckpointOptions."
        )
    return original(checkpoint)


def _refuse_handler(original, handler, cluster_resolver, checkpoint, *args, **kwargs):
    if _owner(getattr(checkpoint, "checkpoint", checkpoint)) is not None:  # it may be a manager
        raise NotImplementedError(
            "PreemptionCheckpointHandler: the worker that is preempted would save alone, and no other would "
            "know of it. Save every n steps on all: by a tf.train.CheckpointManager in your loop, or "
            "keras.callbacks.BackupAndRestore(directory, save_freq=n)."
        )
    return original(handler, cluster_resolver, checkpoint, *args, **kwargs)


def _write_checkpoint(original, checkpoint, file_prefix, options=None):
    nodes = _nodes(checkpoint)
    extended = _owner_of(nodes)
    if extended is None:
        return original(checkpoint, file_prefix, options)
    if not tf.executing_eagerly():
        raise NotImplementedError(
            "a checkpoint of several workers' variables cannot be written in a tf.function; call "
            "Checkpoint.save or write outside."
        )
    if is_chief(extended) and any(isinstance(node, tf.data.Iterator) for node in nodes):
        logging.warning(
            "A checkpoint of several workers holds the first one's iterator: restored, all read on where it "
            "stood, and the same rows. Begin a dataset anew behind what was read (DataCache: `start=`)."
        )
    options = copy.copy(options) or tf.train.CheckpointOptions()
    saving_tables = contextlib.nullcontext()
    holders = {held.slices for held in map(slices.of, nodes) if held is not None}
    if holders:
        saving_tables = _only(holders).wholes.saving()
        options.experimental_sharding_callback = PartsInTurn(options.experimental_sharding_callback)
    if is_chief(extended):
        with saving_tables:
            return original(checkpoint, file_prefix, options)
    options.experimental_write_callbacks = None
    with saving_tables, tempfile.TemporaryDirectory(prefix="not_chief_") as private:
        original(checkpoint, os.path.join(private, "checkpoint"), options)
    # A program written for MultiWorkerMirroredStrategy gives each follower a directory, and deletes it.
    tf.io.gfile.makedirs(os.path.dirname(os.fspath(file_prefix)) or ".")
    return file_prefix


def _only(holders: set[slices.Slices]) -> slices.Slices:
    if len(holders) > 1:
        raise NotImplementedError(
            "a checkpoint cannot hold sharded tables of several strategies, each of which asks its workers "
            "for its own. Write one tf.train.Checkpoint for each strategy."
        )
    return next(iter(holders))


def _save_managed(original, manager, *args, **kwargs):
    path = original(manager, *args, **kwargs)
    extended = _owner(manager.checkpoint)
    if path is None or extended is None or is_chief(extended):
        return path
    kept = manager._maybe_delete  # path: time, oldest first
    kept.pop(path, None)
    kept[path] = time.time()
    manager._latest_checkpoint = path
    surplus = len(kept) - (manager._max_to_keep or len(kept))
    for old in list(itertools.islice(kept, max(surplus, 0))):
        del kept[old]
    return path


def _save_model(original, obj, export_dir, *args, **kwargs):
    extended = _owner(obj)
    if extended is None or is_chief(extended):
        return original(obj, export_dir, *args, **kwargs)
    with tempfile.TemporaryDirectory(prefix="not_chief_") as private:
        return original(obj, os.path.join(private, "model"), *args, **kwargs)


def _load_model(original, export_dir, *args, **kwargs):
    extended = ours(tf.distribute.get_strategy())
    if extended is None or extended.is_alone:
        return original(export_dir, *args, **kwargs)
    with tf.init_scope():  # as TensorFlow's own, also where a function is being traced
        return load_together(extended, export_dir, lambda path: original(path, *args, **kwargs))
