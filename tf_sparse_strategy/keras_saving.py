"""Keras's saves and loads under several workers: the chief writes.

The rules for users are in saving.py. Keras 3 knows no chief: each worker would write the same file, of any
format, where a worker that is not the chief now returns. tf_keras knows one.

A worker that left a file to the chief may not load it outside the scope, where nobody waits for it to
be written. Loads are collective. (keras_file_callbacks.py: ModelCheckpoint, CSVLogger, TensorBoard.
keras_backups.py: BackupAndRestore.)
"""

import contextlib
import functools
import os
import sys
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_strategy import agreement, saving
from tf_sparse_strategy.embedding import copying, files, slices
from tf_sparse_strategy.embedding import state as tables
from tf_sparse_strategy.hooking import ours, while_set, wrap
from tf_sparse_strategy.overlap.variables import check_read


class _Pickling(threading.local):
    is_on = False  # whether each worker writes a file of its own


_pickling = _Pickling()
_left_to_the_chief: set[str] = set()  # files that this worker was asked to write, and did not
_instead_of: dict[str, str] = {}  # `stands_for`


def install_keras3() -> None:
    """Installs the hooks on Keras 3. Idempotent."""
    from keras.src.layers.layer import Layer
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.models.model import Model
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.saving import saving_api, saving_lib
    from keras.src.utils import io_utils, summary_utils

    import tf_sparse_strategy.embedding.layer  # noqa: F401  registers the class, which files name
    import tf_sparse_strategy.embedding.lazy  # noqa: F401  likewise

    wrap(saving_lib, "save_model", _save_by_chief)
    wrap(saving_lib, "save_weights_only", _save_by_chief)
    wrap(saving_lib, "is_memory_sufficient", _no_whole_file_in_memory)
    files.install_keras3(saving_lib.H5IOStore, saving_lib.safe_get_h5_dataset)
    wrap(legacy_h5_format, "save_model_to_hdf5", _save_whole_model_by_chief)
    wrap(legacy_h5_format, "_set_weights", _set_own_weights)
    wrap(Model, "export", functools.partial(_export_by_chief, copying.copy_of))
    wrap(Model, "get_state_tree", _refuse_state_of_parts)
    ask = io_utils.ask_to_proceed_with_overwrite
    for function in ("save_model", "save_weights"):
        _wrap_everywhere(saving_api, "keras", function, functools.partial(_ask_once, ask))
    _wrap_loads(saving_api, "keras")

    wrap(Layer, "get_weights", tables.get_weights)
    wrap(Layer, "set_weights", tables.set_weights)
    wrap(summary_utils, "count_params", tables.count_params)
    wrap(BaseOptimizer, "save_own_variables", tables.save_own_variables)
    wrap(BaseOptimizer, "load_own_variables", tables.load_own_variables)


def install_tf_keras() -> None:
    """Installs the hooks on tf_keras. Idempotent."""
    from tf_keras.src import backend
    from tf_keras.src.engine.base_layer import Layer
    from tf_keras.src.engine.training import Model
    from tf_keras.src.optimizers.optimizer import _BaseOptimizer
    from tf_keras.src.saving import pickle_utils, saving_api, saving_lib
    from tf_keras.src.saving.legacy import hdf5_format
    from tf_keras.src.saving.legacy import save as legacy_save
    from tf_keras.src.saving.legacy.saved_model import save as saved_model_save
    from tf_keras.src.utils import io_utils, layer_utils

    wrap(saving_lib, "save_model", _save_by_chief)
    wrap(saving_lib, "save_weights_only", _save_by_chief)
    wrap(hdf5_format, "save_model_to_hdf5", _save_whole_model_by_chief)
    wrap(legacy_save, "save_weights", _save_legacy_weights_by_chief)
    wrap(saved_model_save, "save", _save_whole_model_by_chief)
    wrap(Model, "export", functools.partial(_export_by_chief, copying.copy_of_tf_keras))
    ask = io_utils.ask_to_proceed_with_overwrite
    for function in ("save_model", "save_weights"):
        _wrap_everywhere(saving_api, "tf_keras", function, functools.partial(_save_legacy, ask))
    _wrap_loads(saving_api, "tf_keras")

    wrap(backend, "batch_get_value", tables.batch_get_value)
    wrap(backend, "batch_set_value", tables.batch_set_value)
    wrap(backend, "int_shape", tables.int_shape)
    wrap(Layer, "set_weights", tables.set_weights)
    wrap(layer_utils, "count_params", tables.count_params)
    wrap(_BaseOptimizer, "save_own_variables", tables.save_own_variables)
    wrap(_BaseOptimizer, "load_own_variables", tables.load_own_variables)
    wrap(pickle_utils, "serialize_model_as_bytecode", _pickle_on_all)


def _wrap_loads(saving_api, package: str) -> None:
    _wrap_everywhere(saving_api, package, "load_weights", _load_weights)
    _wrap_everywhere(saving_api, package, "load_model", _load_model)


def _wrap_everywhere(saving_api, package: str, function: str, wrapper) -> None:
    """In all modules of the package that have the function, e.g. those that `tf.keras` names."""
    original = getattr(saving_api, function)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and vars(module).get(function) is original:
            wrap(module, function, wrapper)


def shared_by(model: Any) -> Any:
    """Of its strategy, or of the current one, if that is ours with several workers, `extended`; else None."""
    extended = ours(getattr(model, "distribute_strategy", tf.distribute.get_strategy()))
    if extended is None:  # it may have been made outside the scope, of layers that were made inside
        with contextlib.suppress(AttributeError, ValueError):  # no model, or of tf_keras and without weights
            made = map(slices.strategy_of, model.weights)
            extended = next(filter(None, map(ours, made)), None)
    return extended


def is_follower(model: Any) -> bool:
    """Whether the model is spread over workers, of which this one is not the chief."""
    extended = shared_by(model)
    return extended is not None and not saving.is_chief(extended)


# ---- models --------------------------------------------------------------------------------------


def _ask_once(ask, original, model, filepath, *args, **kwargs):
    """`overwrite=False`: the chief alone is asked, as others may find the file that it has just written."""
    overwrite, extended = kwargs.get("overwrite", args[0] if args else True), shared_by(model)
    if overwrite or extended is None or _pickling.is_on:
        return original(model, filepath, *args, **kwargs)
    decided = not saving.is_chief(extended)
    if tables.of_training(model) is not None:  # of which the others send theirs, or not
        with agreement.together(extended.collectives):  # `ask` may find no terminal
            goes = not decided and (not _is_there(filepath) or ask(filepath))
        if not agreement.gather(goes, extended.collectives)[0]:
            return None
        decided = True
    args, kwargs = ((decided, *args[1:]), kwargs) if args else (args, kwargs | {"overwrite": decided})
    return original(model, filepath, *args, **kwargs)


def _is_there(filepath) -> bool:
    """Whether there is such a file, or, of tf_keras, such a checkpoint of weights."""
    try:
        return any(map(tf.io.gfile.exists, (filepath, f"{filepath}.index")))
    except tf.errors.UnimplementedError:  # no file system of TensorFlow's, e.g. hf://
        return False


def _save_by_chief(original, model, filepath, *args, **kwargs):
    extended = shared_by(model)
    if extended is None or not isinstance(filepath, (str, os.PathLike)):
        return original(model, filepath, *args, **kwargs)
    require_newest_weights(model)
    if _pickling.is_on:
        with extended.alone() if tables.of_training(model) is None else contextlib.nullcontext():
            return original(model, filepath, *args, **kwargs)
    if not saving.is_chief(extended):
        leave_to_the_chief(model, filepath)
        return None
    # tf_keras itself asks before it replaces a file, which it must find then.
    asks = kwargs.get("overwrite", args[0] if args else True) is False and os.path.isfile(filepath)
    shards = original.__name__ == "save_weights_only" and kwargs.get("max_shard_size", *args[:1])
    in_place = asks or shards  # whose names are made from this one
    file = contextlib.nullcontext(filepath) if in_place else saving.whole_file(filepath)
    with extended.alone(), file as target, tables.saving_tables(model):
        return original(model, target, *args, **kwargs)


def _pickle_on_all(original, model):
    """tf_keras pickles, and copies, by a file of the worker's own, which each writes and reads again."""
    with while_set(_pickling, is_on=True):
        return original(model)


def require_newest_weights(model: Any) -> None:
    """On all workers that save: the first alone would fail, and the others wait for it in their next step."""
    for variable in getattr(model, "weights", ()):
        check_read(slices.tensorflows(variable))


def _no_whole_file_in_memory(original, model):
    """Keras would compare the columns of one worker with the memory, and keep the file of all in it."""
    return tables.of_training(model) is None and original(model)


def _save_whole_model_by_chief(original, model, filepath, *args, **kwargs):
    refuse_parts(model)
    return _save_by_chief(original, model, filepath, *args, **kwargs)


def _save_legacy_weights_by_chief(original, model, filepath, *args, **kwargs):
    is_hdf5 = str(filepath).endswith((".h5", ".hdf5", ".keras")) or "h5" in (*args, *kwargs.values())
    save = _save_whole_model_by_chief if is_hdf5 else _save_by_chief
    return save(original, model, filepath, *args, **kwargs)


def _export_by_chief(copy_of, original, model, filepath, *args, **kwargs):
    """With sharded tables, a copy that holds them whole, which the chief alone makes."""
    if tables.of_model(model) is None:
        return _save_by_chief(original, model, filepath, *args, **kwargs)
    tables.require_copy_outside(model)
    _require_copy(model)  # on all: the chief alone would fail after the others have left
    extended = shared_by(model)
    if not saving.is_chief(extended):
        leave_to_the_chief(model, filepath)
        return None
    with extended.alone(), tables.saving_tables(model):
        weights = model.get_weights()
    with extended.keeping_generators():
        copy = copy_of(model, weights)
    return original(copy, filepath, *args, **kwargs)


def _require_copy(model) -> None:
    """Raises where a copy would take other inputs than `model`, or lack what its class does."""
    copying.require_dense_inputs(model)
    for own in copying.models_in(model):
        from keras.src.models.functional import Functional, functional_like_constructor

        if isinstance(own, Functional) and not functional_like_constructor(type(own)):
            raise NotImplementedError(
                f"the model {own.name!r} is of a class of its own, which a copy with whole tables would not "
                "be. Save it as .weights.h5, load that with one worker, and export there."
            )


def refuse_parts(model: Any) -> None:
    """Raises NotImplementedError where a format knows wholes alone, of which workers hold parts."""
    if tables.of_training(model) is not None:
        raise NotImplementedError(
            "a model with sharded tables or slots cannot be written as legacy .h5 or by Orbax, nor by "
            "tf_keras as a SavedModel, by several workers. Save it as .keras or .weights.h5, or export it."
        )


def _refuse_state_of_parts(original, model, *args, **kwargs):
    """What Orbax writes: of a table one worker's columns."""
    refuse_parts(model)
    return original(model, *args, **kwargs)


def _set_own_weights(original, layer, variables, values, *, skip_mismatch=False, **kwargs):
    """Of a legacy .h5, which several workers do not write, but may be what a training begins with."""

    def own(variable, value):
        held = slices.of(variable)
        if skip_mismatch and held is not None and tuple(value.shape) != held.partition.shape:
            return np.zeros([0])  # what Keras skips, and says so
        return slices.own(variable, value)

    values = [own(*pair) for pair in zip(variables, values, strict=False)]
    return original(layer, variables, values, skip_mismatch=skip_mismatch, **kwargs)


def stands_for(directory: str, asked: str) -> None:
    """This worker's own directory is used in place of the one that the user has asked for."""
    _instead_of[directory] = asked


def leave_to_the_chief(model: Any, path: str | os.PathLike) -> None:
    """The chief writes this file; sends it what it needs of this worker's."""
    directory, name = os.path.split(path)
    _left_to_the_chief.add(os.path.realpath(os.path.join(_instead_of.get(directory, directory), name)))
    tables.send_tables(model)


def _save_legacy(ask, original, *args, **kwargs):
    return _ask_once(ask, functools.partial(_leave_remote_to_the_chief, original), *args, **kwargs)


def _leave_remote_to_the_chief(original, model, filepath, *args, **kwargs):
    """tf_keras copies what another function has written, which followers do not write."""
    from tf_keras.src.saving import saving_lib

    name, given = str(filepath), kwargs.get("save_format", args[1] if len(args) > 1 else None)
    is_file = name.endswith((".keras", ".h5", ".hdf5")) or given in ("h5", "keras")
    if is_file and saving_lib.is_remote_path(name) and is_follower(model):
        if not name.endswith((".keras", ".weights.h5")):
            refuse_parts(model)
        return _save_by_chief(original, model, filepath)
    return original(model, filepath, *args, **kwargs)


def _load_weights(original, model, filepath, *args, **kwargs):
    return _load(
        shared_by(model), filepath, lambda path: original(model, path, *args, **kwargs)
    )


def _load_model(original, filepath, *args, **kwargs):
    extended = ours(tf.distribute.get_strategy())
    return _load(extended, filepath, lambda path: original(path, *args, **kwargs))


def _load(extended, path, load):
    is_path = isinstance(path, (str, os.PathLike))
    if not (is_path or path is None):  # None: of `tf.train.latest_checkpoint`, where this worker sees none
        return load(path)
    if extended is not None:
        loaded = saving.load_together(extended, path, load)
        if is_path:
            _left_to_the_chief.discard(os.path.realpath(path))  # it is complete: all have read it
        return loaded
    if is_path and os.path.realpath(path) in _left_to_the_chief:
        raise RuntimeError(
            f"loading {str(path)!r} outside strategy.scope(): the first worker writes this file, and may "
            "not have finished, so that this worker could find none or an old one. Load it under `with "
            "strategy.scope():` on all workers, which waits for it, or on the first worker alone."
        )
    return load(path)
