"""What a pipeline of tf.data is made of, and the options that workers need on it.

Only this module looks into tf.data's datasets: their inputs, functions and arguments are private.
"""

import hashlib
import os
from collections.abc import Callable, Iterator

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
CACHED = "`cache` may hold the rows of all files"
_COMPARED, _LENGTH, _SHOWN = 10_000, 1000, 100  # strings of a list, bytes of each, and of one in a message


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
    for stage in _down_to_readers(dataset):
        if _is(stage, "CacheDataset"):  # whoever has read it before, or will read it whole, has the same one
            return CACHED
        if _is(stage, "ZipDataset") or _counts(stage):
            return "`take`, `skip`, `shard`, `zip` and `enumerate` count the rows of all files"
        may_join = _is(stage, "RepeatDataset", "ShuffleDataset") and _has_lengths_of_batches(stage)
        if may_join or _is(stage, "GroupByWindowDataset"):
            return "batches are padded to lengths of their own, and rows of two would be joined"
        if _reads(stage):
            names = [each for source in _sources(stage) for each in stages(source)]
            if any(map(_counts, names)) and any(_is(each, "ShuffleDataset") for each in names):
                return "names are shuffled before they are counted, but files are shared out in order"
    return None


def readers(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The stages that read files."""
    return filter(_reads, _down_to_readers(dataset))


def before_repeating(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """What it makes of its rows before it repeats what was shuffled; itself where it does not."""
    found = stage = dataset
    while not _reads(stage) and len(inputs := stage._inputs()) == 1:
        [below] = inputs
        if _is(stage, "RepeatDataset") and any(_is(each, "ShuffleDataset") for each in stages(below)):
            found = below
        stage = below
    return found


def orders(dataset: tf.data.Dataset) -> list:
    """What the order of each shuffle by a seed comes from: equal on workers that shuffle alike."""
    found = []
    for stage in stages(dataset):
        found += _seeds(stage)
        for node in _nodes_within(stage):  # as of arrays in Keras 3, where TensorFlow has been seeded
            if node.op == "RandomShuffle":
                found.append([node.attr[seed].i for seed in ("seed", "seed2")])
    return found


def has_unseeded_shuffle(dataset: tf.data.Dataset) -> bool:
    """Whether rows are shuffled, or mixed, in another order whenever, and wherever, it is read."""
    return any([0, 0] in _seeds(stage) for stage in stages(dataset))


def _seeds(stage: tf.data.Dataset) -> list:
    drawn = [stage] if _is(stage, "ShuffleDataset") else []
    if _is(stage, "DirectedInterleaveDataset"):  # by sample_from_datasets
        drawn = [each for each in stages(stage._selector_input) if _is(each, "RandomDataset")]
    return [[_number(each._seed), _number(each._seed2)] for each in drawn]


def shards(dataset: tf.data.Dataset) -> list:
    """[number of parts, index] of each `shard`."""
    found = (stage for stage in stages(dataset) if _is(stage, "ShardDataset"))
    return [[_number(stage._num_shards), _number(stage._index)] for stage in found]


def strings(dataset: tf.data.Dataset) -> list:
    """[length, first, digest] of each list of strings that it is made of, such as names of files.

    Without the directory that all are in: it may be another one on each machine.
    """
    found = []
    tensors = (t for s in stages(dataset) if _is(s, "TensorSliceDataset") for t in s._tensors)
    for tensor in tensors:
        if tensor.dtype == tf.string and hasattr(tensor, "numpy"):
            flat = tf.reshape(tensor, [-1])
            names = tf.strings.substr(flat[:_COMPARED], 0, _LENGTH).numpy().tolist()  # rows, perhaps: images
            common = len(os.path.dirname(os.path.commonprefix(names)))
            names = [name[common:] for name in names]
            digest = hashlib.blake2b(b"\n".join(names), digest_size=8).hexdigest()
            found.append([int(tf.size(flat)), b"".join(names[:1])[:_SHOWN].decode(errors="replace"), digest])
    return found


def _number(tensor) -> int | None:
    """None where it is computed when the dataset is read."""
    value = tf.get_static_value(tensor)
    return None if value is None else int(value)


def _has_lengths_of_batches(dataset: tf.data.Dataset) -> bool:
    """Whether its batches may differ in more than the number of rows."""
    dense = (spec for spec in components(dataset.element_spec) if isinstance(spec, tf.TensorSpec))
    is_batched = any(_is(s, "Batch", "PaddedBatch", "ParallelBatch") for s in stages(dataset))
    are_padded = not all(spec.shape[1:].is_fully_defined() for spec in dense)
    return is_batched and are_padded and static_batch_size(dataset) is None


def _counts(stage: tf.data.Dataset) -> bool:
    """Whether it takes or skips some, but not all or none."""
    none = {"TakeDataset": ("_count", -1), "SkipDataset": ("_count", 0), "ShardDataset": ("_num_shards", 1)}
    return any(_is(stage, kind) and _number(getattr(stage, n)) != all_ for kind, (n, all_) in none.items())


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
    if any(_is(stage, "DataServiceDataset") for stage in stages(dataset)):
        logging.warning(
            "The tf.data service without a job_name gives each worker batches in another order: rows will be "
            "missed and repeated, since each takes its rows of all batches. Give `distribute` a job_name, "
            "whose batches workers are dealt whole."
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
    return _walk(dataset, _sources)


def _down_to_readers(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Without what the names of files come from."""
    return _walk(dataset, lambda stage: [] if _reads(stage) else _sources(stage))


def _walk(dataset: tf.data.Dataset, sources: Callable) -> Iterator[tf.data.Dataset]:
    waiting, seen = [dataset], set()  # some are chains of a thousand, or are read more than once
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen.add(id(stage))
            yield stage
            waiting.extend(reversed(sources(stage)))


def _sources(stage: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Its inputs; of files, where TensorFlow counts none, their names."""
    names = getattr(stage, "_filenames", None)
    return stage._inputs() or ([names] if isinstance(names, tf.data.Dataset) else [])


def _nodes_within(dataset: tf.data.Dataset) -> Iterator:
    """The operations of a dataset's functions."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def
