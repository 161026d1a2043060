"""What a pipeline of tf.data is made of, and the options that workers need on it.

Only this module looks into tf.data's datasets: their inputs, functions and arguments are private.
"""

import os
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

# TensorFlow's own list of datasets whose input is a list of files (grappler's auto_shard.cc).
_FILE_READERS = (
    "ArrowDataset",
    "FixedLengthRecordDataset",
    "ParquetDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TextLineDataset",
    "TFRecordDataset",
)


def components(structure) -> list:
    """The components of a batch, or their specs; not optional ones that are not given, which have no rows."""
    return [leaf for leaf in tf.nest.flatten(structure) if hasattr(leaf, "shape")]


def static_batch_size(dataset: tf.data.Dataset) -> int | None:
    """The batch size where all batches are known to have it (drop_remainder), else None."""
    return components(dataset.element_spec)[0].shape[0]


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with tf.data's autotuning off, unless its options say otherwise.

    A tuned iterator may take as long to end as it has lived, up to 60 s, with Python's lock held: TensorFlow
    (2.20) wakes the tuning thread before it sets the flag that this thread then looks for. All workers wait
    for that one, and its silence looks like death. Untuned, AUTOTUNE means a call per core.
    """
    options, given = tf.data.Options(), dataset.options().autotune
    if given.enabled is None:
        options.autotune.enabled = False
        options.autotune.initial_parallelism = given.initial_parallelism or os.cpu_count()  # else 16 at most
    return dataset.with_options(options)


def reads_files(dataset: tf.data.Dataset) -> bool:
    """Whether a file reader stands anywhere in the pipeline, also within its functions."""
    return any(map(_reads, stages(dataset)))


def _reads(stage: tf.data.Dataset) -> bool:
    within = (node.op for node in _nodes_within(stage))
    return _is(stage, *_FILE_READERS) or any(op.startswith(_FILE_READERS) for op in within)


def reason_against_files(dataset: tf.data.Dataset) -> str | None:
    """Why a part of the files would not give a part of the rows; None where it would."""
    if _is(dataset, "CacheDataset") and tf.get_static_value(dataset._filename) != b"":
        return "`cache(filename)` may hold the rows of all files"
    if _is(dataset, "ZipDataset") or _counts(dataset):
        return "`take`, `skip`, `zip` and `enumerate` count the rows of all files"
    may_join = _is(dataset, "RepeatDataset", "ShuffleDataset") and _has_lengths_of_batches(dataset)
    if may_join or _is(dataset, "GroupByWindowDataset"):
        return "batches are padded to lengths of their own, and rows of two would be joined"
    if _reads(dataset):  # before it are names
        names = [stage for source in dataset._inputs() for stage in stages(source)]
        if any(map(_counts, names)) and any(_is(stage, "ShuffleDataset") for stage in names):
            return "names are shuffled before they are counted, but files are shared out in order"
        return None
    return next(filter(None, map(reason_against_files, dataset._inputs())), None)


def _has_lengths_of_batches(dataset: tf.data.Dataset) -> bool:
    """Whether its batches may differ in more than the number of rows."""
    dense = (spec for spec in components(dataset.element_spec) if isinstance(spec, tf.TensorSpec))
    is_batched = any(_is(s, "Batch", "PaddedBatch", "ParallelBatch") for s in stages(dataset))
    are_padded = not all(spec.shape[1:].is_fully_defined() for spec in dense)
    return is_batched and are_padded and static_batch_size(dataset) is None


def _counts(stage: tf.data.Dataset) -> bool:
    """Whether it takes or skips some, but not all or none."""
    none = {"TakeDataset": -1, "SkipDataset": 0}
    return any(_is(stage, kind) and tf.get_static_value(stage._count) != n for kind, n in none.items())


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` as each worker must read it that takes slices of the same batches: not in any order.

    Logs a warning where a stage says itself `deterministic=False`, which no option overrides. (An interleave
    tells only within a function.)
    """
    if any(
        getattr(stage, "_deterministic", None) == "false"
        or any(node.attr["deterministic"].s == b"false" for node in _nodes_within(stage))
        for stage in stages(dataset)
    ):
        logging.warning(
            "A stage of the dataset has deterministic=False: workers may get other batches, and rows be "
            "missed and repeated, since each takes its rows of all batches. Leave it out."
        )
    if dataset.options().deterministic is not False:
        return dataset
    logging.info("The dataset's option deterministic=False is not followed: workers share its batches.")
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _is(stage: tf.data.Dataset, *kinds: str) -> bool:
    """Whether TensorFlow's class of a stage is one of these, or a later version of it."""
    return type(stage).__name__.lstrip("_").startswith(kinds)


def stages(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A dataset, and those that it is made of."""
    waiting, seen = [dataset], set()  # some are chains of a thousand, or are read more than once
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen.add(id(stage))
            yield stage
            waiting.extend(reversed(stage._inputs()))


def _nodes_within(dataset: tf.data.Dataset) -> Iterator:
    """The operations of a dataset's functions."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def
