"""What is wanted of a table: which rows, and in which dtypes they travel."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding import slices


@dataclasses.dataclass(frozen=True)
class Request:
    """Rows wanted of one table.

    Args:
      name: the table's, for errors.
      table: the variable, a slice or whole.
      ids: integers [n], negative ones counting from the end.
      dtype: of the result.
      wire_dtype: rows and their gradients travel in it; None for `dtype` forward and the table's backward.
      clip: whether ids out of range mean the nearest row; else they are an error.
      trained: whether the rows' gradients are wanted.
    """

    name: str
    table: Any
    ids: tf.Tensor
    dtype: tf.DType
    wire_dtype: tf.DType | None = None
    clip: bool = False
    trained: bool = True

    def sent(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows in the dtype in which they travel."""
        return tf.cast(rows, self.wire_dtype or self.dtype)

    def sent_back(self, gradients: tf.Tensor) -> tf.Tensor:
        """Gradients, in the table's dtype, in the one in which they travel."""
        return tf.cast(gradients, self.wire_dtype or gradients.dtype)


def distinct(request: Request) -> tuple[tf.Tensor, tf.Tensor]:
    """(the distinct ids as int64, for each given id its place among them)."""
    rows = slices.whole_shape(request.table)[0]
    ids = request.ids
    if ids.dtype == tf.uint64:  # which could turn negative, and so count from the end
        ids = tf.minimum(ids, tf.constant(tf.int64.max, tf.uint64))
    ids = tf.cast(ids, tf.int64)  # 8 and 16 bits cannot count the rows
    ids = tf.where(ids < 0, ids + rows, ids)
    if request.clip:
        ids = tf.clip_by_value(ids, 0, rows - 1)
    ids, place = tf.unique(ids)
    return ids, place


def checked(request: Request, ids: tf.Tensor, names: Sequence[str], asking: tf.Tensor) -> tf.Tensor:
    """`ids` as int32, after an assertion that they are rows.

    Args:
      request: for them.
      ids: distinct ones of all that ask.
      names: of who may ask, for errors.
      asking: for each id who asks for it, its place among `names`.
    """
    rows = slices.whole_shape(request.table)[0]
    wrong = tf.where((ids < 0) | (ids >= rows))[:1, 0]
    first = tf.gather(ids, wrong)
    given = tf.where(first < 0, first - rows, first)  # as it was before it counted from the end
    text = f"{request.name!r} has rows 0 to {rows - 1}; ids_out_of_range='clip' takes the nearest. Got id"
    facts = [text, given, "on rank", tf.gather(tf.constant(names), tf.gather(asking, wrong))]
    check = tf.debugging.Assert(tf.size(wrong) == 0, facts)
    with tf.control_dependencies([check]):
        return tf.cast(ids, tf.int32)
