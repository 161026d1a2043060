"""From records to batches, through DataCache."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from datacache import DataCache, TFRecords, budget
from datacache.cache import MEMORY_DIR
from datacache.local import LocalCopies
from examples.resnet50 import images, records
from examples.resnet50.config import Config, Phase
from tf_sparse_strategy import agreement
from tf_sparse_strategy.pipelines import without_tuning

# Of the synthetic files: numbers of images and of shards.
_IMAGES = {"train": 192, "validation": 44}
_SHARDS = {"train": 4, "validation": 2}
_VALIDATED_AT_ONCE = 512 << 20  # bytes, as DataCache's of training


class Step(NamedTuple):
    """One step of validation.

    Attributes:
      ids: image numbers, as many as in each other step.
      counts: the weight of each, 0 for what only fills the step up; their mean over all steps is 1, so that a
        loss that is divided by the rows is that of the images.
      height, width: of the images, in pixels.
    """

    ids: np.ndarray
    counts: np.ndarray
    height: int
    width: int


def validation_steps(
    aspects: np.ndarray, batch: int, workers: int, size: int, rectangles: bool
) -> list[Step]:
    """Which images are validated together, each once, and in which shape.

    Rectangles keep most of the images: neighbours by aspect ratio share a step.

    Args:
      aspects: float [n], width by height.
      batch: images per step, all workers together; rounded down to a multiple of P.
      workers: P.
      size: pixels of the shorter side.
      rectangles: whether the longer side may be longer.
    """
    batch = max(batch // workers, 1) * workers
    order = np.argsort(aspects, kind="stable") if rectangles else np.arange(len(aspects))
    steps, starts = [], range(0, len(order), batch)
    weight = len(starts) * batch / len(order)
    for start in starts:
        ids = order[start : start + batch]
        mean = float(aspects[ids].mean()) if rectangles else 1.0
        missing = batch - len(ids)
        counts = np.full(batch, weight, np.float32)
        counts[len(ids) :] = 0
        steps.append(Step(np.pad(ids, (0, missing)), counts, *images.rectangle(mean, size)))
    return steps


def one_hot(labels: tf.Tensor, config: Config) -> tf.Tensor:
    """`labels` as vectors; TensorFlow's own would be zeros where a label is none of the classes."""
    wrong = tf.where((labels < 0) | (labels >= config.classes))
    facts = [
        f"--classes={config.classes} and --label_offset={config.label_offset} want records with labels from "
        f"{-config.label_offset} to {config.classes - 1 - config.label_offset}; there is, with the offset,",
        tf.gather_nd(labels, wrong),
    ]
    check = tf.debugging.Assert(tf.size(wrong) == 0, facts)
    with tf.control_dependencies([check]):
        return tf.one_hot(labels, config.classes)


class Data:
    """The images of a run: all workers make it together.

    Args:
      config: the run.
      strategy: which distributes what `training` and `validation` return.
    """

    def __init__(self, config: Config, strategy: tss.SparseStrategy):
        self._config, self._strategy = config, strategy
        self._topology = strategy.topology
        data_dir = config.data_dir
        if config.synthetic:
            data_dir = os.path.join(config.output_dir, f"synthetic-{config.classes}")
            if self._topology.local == 0:
                records.write_synthetic(data_dir, _IMAGES, _SHARDS, config.classes)
            strategy.reduce("SUM", tf.ones([]), axis=None)  # all files are there
        self._sources = {
            split: TFRecords(records.files(data_dir, split)) for split in ("train", "validation")
        }
        copies = LocalCopies(config.cache_dir)
        memory_dir = None if budget.parse(config.cache_memory) == 0 else MEMORY_DIR
        for source in self._sources.values():
            # Before its size is asked for: files are read once per machine, into the copies.
            source.open(copies, memory_dir)
        agreement.require_same(
            {split: self.size(split) for split in self._sources},
            strategy.extended.collectives,
            "--data_dir must hold the same images on all machines.",
        )
        self._caches = {}
        self._aspects = None

    def size(self, split: str) -> int:
        """Images of "train" or "validation"."""
        return len(self._sources[split])

    def steps(self, phase: Phase) -> int:
        """Per epoch; what remains waits for the next epoch's order."""
        return self.size("train") // self._config.batch(phase)

    def cache(self, split: str, canvas: int) -> DataCache:
        """The decoded images of a split at a size; shared by phases, and by processes of a machine."""
        if (split, canvas) not in self._caches:
            self._caches[split, canvas] = DataCache(
                self._sources[split],
                records.decode(canvas, self._config.label_offset),
                local_dir=self._config.cache_dir,
                memory=self._config.cache_memory,
                version=f"examples.resnet50 {canvas} {self._config.label_offset}",
                nodes=self._topology.num_nodes,
            )
        return self._caches[split, canvas]

    def training(self, phase: Phase, first_epoch: int):
        """Batches without end, from an epoch of the run on."""
        config = self._config
        cache = self.cache("train", config.canvas(phase))

        def augment(canvases, aspects, labels, seed):
            boxes = images.random_boxes(seed, aspects, phase.min_area)
            cut = images.cut(canvases, boxes, phase.size, phase.size)
            return cut, one_hot(labels, config)

        def batches(context):
            return cache.dataset(
                config.batch(phase),
                augment,
                seed=config.seed,
                input_context=context,
                start=first_epoch * self.steps(phase),
                drop_remainder=True,
            )

        return self._strategy.distribute_datasets_from_function(batches)

    def validation(self, phase: Phase):
        """(batches (images, labels, counts) over and over, steps of one round); counts weigh metrics."""
        config = self._config
        cache = self.cache("validation", config.canvas(phase))
        aspects = self.aspects() if phase.rectangles else np.ones(self.size("validation"))
        workers, rank = self._topology.num_workers, self._topology.rank
        steps = validation_steps(
            aspects, config.validation_batch_size, workers, phase.size, phase.rectangles
        )

        batch_bytes = 12 * len(steps[0].ids[rank::workers]) * max(step.height * step.width for step in steps)
        at_once = max(1, min(len(os.sched_getaffinity(0)), len(steps), _VALIDATED_AT_ONCE // batch_bytes))

        def load(ids, counts, height, width):
            canvases, aspects, labels = cache.load(ids)
            boxes = images.middle_boxes(aspects, phase.size, height, width)
            if not phase.rectangles:
                height = width = phase.size
            cut = images.cut(canvases, boxes, height, width)
            return cut, one_hot(labels, config), counts

        def batches(context):
            del context
            columns = (
                np.stack([step.ids[rank::workers] for step in steps]),
                np.stack([step.counts[rank::workers] for step in steps]),
                np.array([step.height for step in steps], np.int32),
                np.array([step.width for step in steps], np.int32),
            )
            dataset = tf.data.Dataset.from_tensor_slices(columns)
            # Without end: tf_keras goes on where its last round has ended.
            dataset = dataset.repeat().map(load, at_once, deterministic=True).prefetch(1)
            dataset.is_prefetched = True
            return dataset

        return self._strategy.distribute_datasets_from_function(batches), len(steps)

    def aspects(self) -> Sequence[float]:
        """Of all validation images; each worker looks at its part once."""
        if self._aspects is None:
            count, workers = self.size("validation"), self._topology.num_workers
            mine = np.arange(self._topology.rank, count, workers)
            read = self._sources["validation"].reader()
            found = tf.data.Dataset.from_tensor_slices(mine).map(
                lambda number: records.aspect_of(*read(number)), tf.data.AUTOTUNE
            )
            own = np.zeros(count, np.float32)
            own[mine] = list(without_tuning(found).as_numpy_iterator())
            self._aspects = self._strategy.reduce("SUM", tf.constant(own), axis=None).numpy()
        return self._aspects
