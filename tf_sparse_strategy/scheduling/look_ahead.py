"""The next batch beside each, which says what rows of a table are wanted soon (docs/scheduling_2d.md)."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_strategy.input import Batch, map_elements, num_rows, take_rows


class Ahead(NamedTuple):
    """A batch, and what comes after it.

    Attributes:
      data: the batch.
      following: x of this worker's next batch; without rows where there is none.
    """

    data: Any
    following: Any


def look_ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with each batch as `Ahead`, in its `Batch` where it is tagged.

    Of one iterator, which is one batch ahead: a second one would shuffle anew.
    """
    spec = dataset.element_spec
    # tf.data carries tensors, but not structures of all kinds, from one element to the next.
    specs = [s for s in tf.nest.flatten(spec, expand_composites=True) if isinstance(s, tf.TensorSpec)]
    nothing = tuple(_zeros(s) for s in specs)

    def tensors(element):
        return (True, *(x for x in tf.nest.flatten(element, expand_composites=True) if x is not None))

    ended = map_elements(dataset, tensors).concatenate(tf.data.Dataset.from_tensors((False, *nothing)))
    pairs = ended.scan((False, *nothing), lambda before, now: (now, (before, now))).skip(1)

    def join(before, now):
        batch, following = (
            tf.nest.pack_sequence_as(spec, list(x[1:]), expand_composites=True) for x in (before, now)
        )
        following = tf.cond(
            now[0], lambda: _counted_inputs(following), lambda: take_rows(_inputs(batch), 0, 0)
        )
        if isinstance(batch, Batch):
            return batch._replace(data=Ahead(batch.data, following))
        return Ahead(batch, following)

    return pairs.map(tf.autograph.experimental.do_not_convert(join))


def _counted_inputs(element):
    """`_inputs`, of a batch of no account without its row, which nobody will look up."""
    inputs = _inputs(element)
    if not isinstance(element, Batch):
        return inputs
    rows = tf.cast(num_rows(inputs), tf.int64)
    return take_rows(inputs, 0, tf.where(element.rows > 0, rows, tf.zeros_like(rows)))


def _zeros(spec):
    if spec.dtype == tf.variant:  # an input that is left out
        nothing = tf.experimental.Optional.empty(None)
        return tf.nest.flatten(nothing, expand_composites=True)[0]
    shape = [] if spec.shape.rank is None else [n or 0 for n in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)


def _inputs(element):
    """x of what Keras takes for (x,), (x, y) or (x, y, sample_weight)."""
    data = element.data if isinstance(element, Batch) else element
    return data[0] if isinstance(data, tuple) else data
